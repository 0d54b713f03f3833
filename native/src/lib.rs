//! The Rust side of kvroute: encoders (fastokens, with Hugging Face's tokenizers as the reference) and
//! chat templates (minijinja, made to render as Jinja2 under transformers does), behind two C interfaces:
//! our own `kvr_*` (header internal/tokenize/hf/kvr.h) and the one github.com/daulet/tokenizers expects.
//!
//! Rules of the interface: text is a pointer and a length, never a C string, so that NUL survives; UTF-8
//! is checked; no panic crosses it; errors are text; what is handed out is freed by the call named for it.

mod daulet;
mod encoder;
mod filters;
mod format;
mod json;
mod methods;
mod probe;
mod python;
mod template;

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

use encoder::Model;
use template::Template;

/// Bytes owned by this side, given back with [`kvr_bytes_free`]. Unset: a null pointer.
#[repr(C)]
pub struct Bytes {
    ptr: *mut u8,
    len: usize,
}

impl Bytes {
    fn from_vec(v: Vec<u8>) -> Bytes {
        let b = v.into_boxed_slice();
        let len = b.len();
        Bytes { ptr: Box::into_raw(b) as *mut u8, len }
    }
}

/// # Safety
/// `ptr` and `len` describe readable memory, or `len` is 0.
unsafe fn input<'a>(ptr: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        &[]
    } else {
        slice::from_raw_parts(ptr, len)
    }
}

fn utf8(b: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(b).map_err(|e| format!("invalid UTF-8 at byte {}", e.valid_up_to()))
}

fn panic_text(p: Box<dyn Any + Send>) -> String {
    let what = p
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| p.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".into());
    format!("internal error: {what}")
}

/// Runs f; a panic becomes an error, as everything else does.
fn guard<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| Err(panic_text(p)))
}

/// # Safety
/// `err` is null or writable.
unsafe fn report<T>(r: Result<T, String>, err: *mut Bytes) -> Option<T> {
    match r {
        Ok(v) => Some(v),
        Err(e) => {
            if !err.is_null() {
                err.write(Bytes::from_vec(e.into_bytes()));
            }
            None
        }
    }
}

/// Bounds the threads an encoding of a large text may use, and silences panics' own output: they come
/// back as errors. Called once, before anything else.
#[no_mangle]
pub extern "C" fn kvr_init(threads: u32) {
    for name in ["RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS"] {
        if std::env::var_os(name).is_none() {
            std::env::set_var(name, threads.max(1).to_string());
        }
    }
    std::panic::set_hook(Box::new(|_| {}));
}

/// Gives back what the interface handed out.
///
/// # Safety
/// `b` came from this interface and was not freed before.
#[no_mangle]
pub unsafe extern "C" fn kvr_bytes_free(b: Bytes) {
    if !b.ptr.is_null() {
        drop(Box::from_raw(slice::from_raw_parts_mut(b.ptr, b.len)));
    }
}

/// Loads a tokenizer.json with both encoders. `info` becomes a JSON object: what encodes, why not the
/// faster one, added tokens, whether there is a normalizer.
///
/// # Safety
/// Pointers are valid for their lengths; info and err are writable.
#[no_mangle]
pub unsafe extern "C" fn kvr_model_open(json: *const u8, len: usize, info: *mut Bytes, err: *mut Bytes) -> *mut Model {
    let data = input(json, len);
    let opened = guard(|| {
        let m = Model::open(data)?;
        let i = m.info();
        Ok((m, i))
    });
    match report(opened, err) {
        Some((m, i)) => {
            info.write(Bytes::from_vec(i.into_bytes()));
            Box::into_raw(Box::new(m))
        }
        None => std::ptr::null_mut(),
    }
}

/// # Safety
/// `m` came from [`kvr_model_open`] and nothing uses it any more.
#[no_mangle]
pub unsafe extern "C" fn kvr_model_free(m: *mut Model) {
    if !m.is_null() {
        let _ = guard(|| {
            drop(Box::from_raw(m));
            Ok(())
        });
    }
}

/// Encodes text into `out` (room for `cap` ids) and returns how many ids there are. If they do not fit,
/// `out` is untouched and `more` holds them, as native-endian u32. Negative: `err` says why.
/// `reference` asks for the reference encoder.
///
/// # Safety
/// Pointers are valid for their lengths; more and err are writable.
#[no_mangle]
pub unsafe extern "C" fn kvr_encode(
    m: *const Model,
    reference: bool,
    text: *const u8,
    len: usize,
    add_special: bool,
    out: *mut u32,
    cap: usize,
    more: *mut Bytes,
    err: *mut Bytes,
) -> i64 {
    let data = input(text, len);
    let encoded = guard(|| (*m).encode(reference, utf8(data)?, add_special));
    match report(encoded, err) {
        None => -1,
        Some(ids) => {
            let n = ids.len();
            if n <= cap {
                std::ptr::copy_nonoverlapping(ids.as_ptr(), out, n);
            } else {
                let raw = slice::from_raw_parts(ids.as_ptr() as *const u8, n * 4);
                more.write(Bytes::from_vec(raw.to_vec()));
            }
            n as i64
        }
    }
}

/// The text of ids, as the reference decodes them (special tokens kept).
///
/// # Safety
/// Pointers are valid for their lengths; text and err are writable.
#[no_mangle]
pub unsafe extern "C" fn kvr_decode(
    m: *const Model,
    ids: *const u32,
    n: usize,
    text: *mut Bytes,
    err: *mut Bytes,
) -> bool {
    let ids = if n == 0 { &[][..] } else { slice::from_raw_parts(ids, n) };
    match report(guard(|| (*m).decode(ids)), err) {
        None => false,
        Some(s) => {
            text.write(Bytes::from_vec(s.into_bytes()));
            true
        }
    }
}

/// Compiles a chat template. `info` becomes a JSON object: variables it reads, whether it wants parts.
///
/// # Safety
/// Pointers are valid for their lengths; info and err are writable.
#[no_mangle]
pub unsafe extern "C" fn kvr_template_compile(
    source: *const u8,
    len: usize,
    info: *mut Bytes,
    err: *mut Bytes,
) -> *mut Template {
    let data = input(source, len);
    let compiled = guard(|| {
        let t = Template::compile(utf8(data)?)?;
        let i = t.info()?;
        Ok((t, i))
    });
    match report(compiled, err) {
        Some((t, i)) => {
            info.write(Bytes::from_vec(i.into_bytes()));
            Box::into_raw(Box::new(t))
        }
        None => std::ptr::null_mut(),
    }
}

/// # Safety
/// `t` came from [`kvr_template_compile`] and nothing uses it any more.
#[no_mangle]
pub unsafe extern "C" fn kvr_template_free(t: *mut Template) {
    if !t.is_null() {
        let _ = guard(|| {
            drop(Box::from_raw(t));
            Ok(())
        });
    }
}

/// Renders. `vars` is a JSON object; `now` what strftime_now sees. False: `err` is a JSON object
/// (see template.rs, Failure).
///
/// # Safety
/// Pointers are valid for their lengths; out and err are writable.
#[no_mangle]
pub unsafe extern "C" fn kvr_template_render(
    t: *const Template,
    vars: *const u8,
    len: usize,
    now: python::CivilTime,
    out: *mut Bytes,
    err: *mut Bytes,
) -> bool {
    let data = input(vars, len);
    let rendered = catch_unwind(AssertUnwindSafe(|| (*t).render(data, now)))
        .unwrap_or_else(|p| Err(template::Failure::internal(panic_text(p))));
    match rendered {
        Ok(s) => {
            out.write(Bytes::from_vec(s.into_bytes()));
            true
        }
        Err(f) => {
            err.write(Bytes::from_vec(f.to_json().into_bytes()));
            false
        }
    }
}

/// Formats a float as Python's repr does, into `out` (room for 32 bytes); returns the length. For tests.
///
/// # Safety
/// `out` has room for 32 bytes.
#[no_mangle]
pub unsafe extern "C" fn kvr_float(v: f64, out: *mut u8) -> usize {
    let s = python::float_repr(v);
    std::ptr::copy_nonoverlapping(s.as_ptr(), out, s.len().min(32));
    s.len().min(32)
}
