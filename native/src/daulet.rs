//! The C interface github.com/daulet/tokenizers v1.27 expects of its archive, over the reference encoder.
//! Its tokenizers.h sets names and layouts, and the C strings: text ends at the first NUL there.

use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::null_mut;
use std::slice;

use hf::tokenizer::{TruncationDirection, TruncationParams, TruncationStrategy};
use hf::Tokenizer;

use crate::guard;

#[repr(C)]
pub struct EncodeOptions {
    add_special_tokens: bool,
    return_type_ids: bool,
    return_tokens: bool,
    return_special_tokens_mask: bool,
    return_attention_mask: bool,
    return_offsets: bool,
}

#[repr(C)]
pub struct Options {
    encode_special_tokens: bool,
}

#[repr(C)]
pub struct Buffer {
    ids: *mut u32,
    type_ids: *mut u32,
    special_tokens_mask: *mut u32,
    attention_mask: *mut u32,
    tokens: *mut *mut c_char,
    offsets: *mut usize,
    len: usize,
}

impl Buffer {
    const NONE: Buffer = Buffer {
        ids: null_mut(),
        type_ids: null_mut(),
        special_tokens_mask: null_mut(),
        attention_mask: null_mut(),
        tokens: null_mut(),
        offsets: null_mut(),
        len: 0,
    };
}

fn give<T>(v: Vec<T>) -> *mut T {
    Box::into_raw(v.into_boxed_slice()) as *mut T
}

unsafe fn take<T>(p: *mut T, len: usize) {
    if !p.is_null() {
        drop(Box::from_raw(slice::from_raw_parts_mut(p, len)));
    }
}

/// A C string of s up to its first NUL.
fn c_string(s: &str) -> *mut c_char {
    let end = s.find('\0').unwrap_or(s.len());
    CString::new(&s[..end]).map_or(null_mut(), CString::into_raw)
}

unsafe fn opened(r: Result<Tokenizer, String>, error: *mut *mut c_char) -> *mut c_void {
    match r {
        Ok(t) => Box::into_raw(Box::new(t)).cast(),
        Err(e) => {
            if !error.is_null() {
                *error = c_string(&e);
            }
            null_mut()
        }
    }
}

/// Its name is the version check: the Go side refers to it, so that another archive does not link.
#[no_mangle]
pub extern "C" fn tokenizers_version_1_26_0() {}

#[no_mangle]
pub extern "C" fn tokenizers_version() -> *const c_char {
    c"1.26.0".as_ptr()
}

/// # Safety
/// config has len bytes; options is valid or null; error is writable or null.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_bytes(
    config: *const u8,
    len: u32,
    options: *const Options,
    error: *mut *mut c_char,
) -> *mut c_void {
    let data = crate::input(config, len as usize);
    let special = !options.is_null() && (*options).encode_special_tokens;
    let r = guard(|| {
        let mut t = crate::encoder::reference(data)?;
        t.set_encode_special_tokens(special);
        Ok(t)
    });
    opened(r, error)
}

/// # Safety
/// config has len bytes; error is writable or null.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_bytes_with_truncation(
    config: *const u8,
    len: u32,
    max_len: usize,
    direction: u8,
    error: *mut *mut c_char,
) -> *mut c_void {
    let data = crate::input(config, len as usize);
    let r = guard(|| {
        let mut t = crate::encoder::reference(data)?;
        t.with_truncation(Some(TruncationParams {
            direction: if direction == 0 { TruncationDirection::Left } else { TruncationDirection::Right },
            max_length: max_len,
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
        }))
        .map_err(|e| e.to_string())?;
        Ok(t)
    });
    opened(r, error)
}

/// # Safety
/// config is a C string; error is writable or null.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_file(config: *const c_char, error: *mut *mut c_char) -> *mut c_void {
    let path = CStr::from_ptr(config).to_string_lossy().into_owned();
    let r = guard(|| {
        let data = std::fs::read(&path).map_err(|e| format!("{path}: {e}"))?;
        crate::encoder::reference(&data)
    });
    opened(r, error)
}

/// # Safety
/// error is writable or null.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_tiktoken(
    _model: *const c_char,
    _config: *const c_char,
    _pattern: *const c_char,
    error: *mut *mut c_char,
) -> *mut c_void {
    opened(Err("tiktoken files are not supported by this archive: convert them to tokenizer.json".into()), error)
}

/// # Safety
/// ptr came from a tokenizers_from_ call; message is a C string; options is valid.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_encode(
    ptr: *mut c_void,
    message: *const c_char,
    options: *const EncodeOptions,
) -> Buffer {
    let (t, o) = (&*(ptr as *const Tokenizer), &*options);
    let data = CStr::from_ptr(message).to_bytes();
    let r = guard(|| t.encode_char_offsets(crate::utf8(data)?, o.add_special_tokens).map_err(|e| e.to_string()));
    let Ok(e) = r else { return Buffer::NONE };
    let if_asked = |asked: bool, v: &[u32]| if asked { give(v.to_vec()) } else { null_mut() };
    let mut b = Buffer { ids: give(e.get_ids().to_vec()), len: e.get_ids().len(), ..Buffer::NONE };
    b.type_ids = if_asked(o.return_type_ids, e.get_type_ids());
    b.special_tokens_mask = if_asked(o.return_special_tokens_mask, e.get_special_tokens_mask());
    b.attention_mask = if_asked(o.return_attention_mask, e.get_attention_mask());
    if o.return_tokens {
        b.tokens = give(e.get_tokens().iter().map(|s| c_string(s)).collect());
    }
    if o.return_offsets {
        b.offsets = give(e.get_offsets().iter().flat_map(|&(a, z)| [a, z]).collect());
    }
    b
}

/// # Safety
/// ptr came from a tokenizers_from_ call; ids has len ids.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_decode(
    ptr: *mut c_void,
    ids: *const u32,
    len: u32,
    skip_special_tokens: bool,
) -> *mut c_char {
    let t = &*(ptr as *const Tokenizer);
    let ids = if len == 0 { &[][..] } else { slice::from_raw_parts(ids, len as usize) };
    match guard(|| t.decode(ids, skip_special_tokens).map_err(|e| e.to_string())) {
        Ok(s) => c_string(&s),
        Err(_) => null_mut(),
    }
}

/// # Safety
/// ptr came from a tokenizers_from_ call.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_vocab_size(ptr: *mut c_void) -> u32 {
    let t = &*(ptr as *const Tokenizer);
    guard(|| Ok(t.get_vocab_size(true) as u32)).unwrap_or(0)
}

/// # Safety
/// ptr came from a tokenizers_from_ call and was not freed.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_tokenizer(ptr: *mut c_void) {
    if !ptr.is_null() {
        drop(Box::from_raw(ptr as *mut Tokenizer));
    }
}

/// # Safety
/// b came from tokenizers_encode and was not freed.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_buffer(b: Buffer) {
    take(b.ids, b.len);
    take(b.type_ids, b.len);
    take(b.special_tokens_mask, b.len);
    take(b.attention_mask, b.len);
    take(b.offsets, b.len * 2);
    if !b.tokens.is_null() {
        for &s in slice::from_raw_parts(b.tokens, b.len) {
            tokenizers_free_string(s);
        }
        take(b.tokens, b.len);
    }
}

/// # Safety
/// s came from this interface and was not freed.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_string(s: *mut c_char) {
    if !s.is_null() {
        drop(CString::from_raw(s));
    }
}
