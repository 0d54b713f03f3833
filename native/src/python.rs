//! What Python does where Rust does something else: white space, numbers, reprs, JSON, dates.

use std::ffi::CString;
use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// str.isspace for one character: Unicode's White_Space and the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// float.__repr__: the shortest text that reads back, in positional form between 1e-4 and 1e16.
pub fn float_repr(v: f64) -> String {
    if v.is_nan() {
        return "nan".into();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let a = v.abs();
    if a != 0.0 && !(1e-4..1e16).contains(&a) {
        let s = format!("{v:e}");
        let (mantissa, exp) = s.split_once('e').unwrap_or((&s, "0"));
        let exp: i32 = exp.parse().unwrap_or(0);
        return format!("{mantissa}e{}{:02}", if exp < 0 { '-' } else { '+' }, exp.abs());
    }
    let mut s = format!("{v}");
    if !s.contains('.') {
        s.push_str(".0");
    }
    s
}

/// The float in v, if it is one.
pub fn as_float(v: &Value) -> Option<f64> {
    if v.kind() == ValueKind::Number && !v.is_integer() {
        f64::try_from(v.clone()).ok()
    } else {
        None
    }
}

/// Appends str(v).
pub fn write_str(out: &mut String, v: &Value) -> Result<(), Error> {
    if let Some(s) = v.as_str() {
        out.push_str(s);
        return Ok(());
    }
    match v.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::Invalid => Err(Error::new(ErrorKind::InvalidOperation, v.to_string())),
        _ => write_repr(out, v),
    }
}

/// Appends repr(v).
pub fn write_repr(out: &mut String, v: &Value) -> Result<(), Error> {
    match v.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Invalid => return Err(Error::new(ErrorKind::InvalidOperation, v.to_string())),
        ValueKind::String => str_repr(out, v.as_str().unwrap_or_default()),
        ValueKind::Number => match as_float(v) {
            Some(f) => out.push_str(&float_repr(f)),
            None => write!(out, "{v}").unwrap_or(()),
        },
        ValueKind::Seq => {
            let tuple = v.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut n = 0;
            for item in v.try_iter()?.checked() {
                if n > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item?)?;
                n += 1;
            }
            if tuple && n == 1 {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in v.try_iter()?.checked().enumerate() {
                let key = key?;
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key)?;
                out.push_str(": ");
                write_repr(out, &v.get_item(&key)?)?;
            }
            out.push('}');
        }
        _ => write!(out, "{v}").unwrap_or(()),
    }
    Ok(())
}

/// str.__repr__.
fn str_repr(out: &mut String, s: &str) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let n = c as u32;
                let r = match n {
                    0..=0xff => write!(out, "\\x{n:02x}"),
                    0x100..=0xffff => write!(out, "\\u{n:04x}"),
                    _ => write!(out, "\\U{n:08x}"),
                };
                r.unwrap_or(());
            }
        }
    }
    out.push(quote);
}

/// str.isprintable for one character: neither a control, format, private or unassigned character nor a
/// separator other than space. The standard library escapes the same ones, behind another character.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let mut buf = [b'a'; 5];
    let n = c.encode_utf8(&mut buf[1..]).len();
    let s = std::str::from_utf8(&buf[..1 + n]).unwrap_or("a");
    s.escape_debug().nth(1) == Some(c)
}

/// Options of json.dumps.
pub struct Dump {
    pub ascii: bool,
    pub indent: Option<String>,
    pub item_sep: String,
    pub key_sep: String,
    pub sort_keys: bool,
}

impl Dump {
    /// json.dumps(v, …).
    pub fn dumps(&self, v: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, v, 0)?;
        Ok(out)
    }

    fn newline(&self, out: &mut String, depth: usize) {
        if let Some(ind) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(ind);
            }
        }
    }

    fn write(&self, out: &mut String, v: &Value, depth: usize) -> Result<(), Error> {
        match v.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::Number => match as_float(v) {
                Some(f) => out.push_str(&json_float(f)),
                None => write!(out, "{v}").unwrap_or(()),
            },
            ValueKind::String => self.string(out, v.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let mut n = 0;
                out.push('[');
                for item in v.try_iter()?.checked() {
                    if n > 0 {
                        out.push_str(&self.item_sep);
                    }
                    self.newline(out, depth + 1);
                    self.write(out, &item?, depth + 1)?;
                    n += 1;
                }
                if n > 0 {
                    self.newline(out, depth);
                }
                out.push(']');
            }
            ValueKind::Map => self.map(out, v, depth)?,
            kind => return Err(Error::new(ErrorKind::BadSerialization, format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn map(&self, out: &mut String, v: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = v.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
        if self.sort_keys {
            keys.sort();
        }
        out.push('{');
        for (i, key) in keys.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item_sep);
            }
            self.newline(out, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(out, key.as_str().unwrap_or_default()),
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    out.push('"');
                    self.write(out, key, depth)?;
                    out.push('"');
                }
                kind => return Err(Error::new(ErrorKind::BadSerialization, format!("keys must not be {kind}"))),
            }
            out.push_str(&self.key_sep);
            self.write(out, &v.get_item(key)?, depth + 1)?;
        }
        if !keys.is_empty() {
            self.newline(out, depth);
        }
        out.push('}');
        Ok(())
    }

    fn string(&self, out: &mut String, s: &str) {
        out.reserve(s.len() + 2);
        out.push('"');
        let mut from = 0;
        for (i, c) in s.char_indices() {
            let plain = if self.ascii { (' '..='~').contains(&c) } else { c >= ' ' };
            if plain && c != '"' && c != '\\' {
                continue;
            }
            out.push_str(&s[from..i]);
            from = i + c.len_utf8();
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                _ => {
                    for u in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{u:04x}").unwrap_or(());
                    }
                }
            }
        }
        out.push_str(&s[from..]);
        out.push('"');
    }
}

fn json_float(f: f64) -> String {
    if f.is_nan() {
        "NaN".into()
    } else if f.is_infinite() {
        if f > 0.0 {
            "Infinity".into()
        } else {
            "-Infinity".into()
        }
    } else {
        float_repr(f)
    }
}

/// A time of day on a calendar, in whatever zone the caller chose.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CivilTime {
    pub year: i32,
    pub month: i32,
    pub day: i32,
    pub hour: i32,
    pub minute: i32,
    pub second: i32,
    pub micro: i32,
    /// Days since Sunday and since January 1st.
    pub weekday: i32,
    pub yearday: i32,
}

/// datetime.strftime of a time without a zone: %f here, %z and %Z empty, the rest by the C library in
/// the C locale, as Python does it.
pub fn strftime(format: &str, t: CivilTime) -> Result<String, String> {
    let mut f = String::with_capacity(format.len() + 8);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            f.push(c);
            continue;
        }
        match chars.next() {
            Some('f') => write!(f, "{:06}", t.micro).unwrap_or(()),
            Some('z' | 'Z') => {}
            Some(d) => f.extend(['%', d]),
            None => f.push('%'),
        }
    }
    if f.is_empty() {
        return Ok(f);
    }
    // A byte in front tells an empty result from one that does not fit.
    let f = CString::new(format!("x{f}")).map_err(|_| "NUL in the format".to_string())?;
    // SAFETY: tm is plain data, all zero is valid.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    tm.tm_year = t.year - 1900;
    tm.tm_mon = t.month - 1;
    tm.tm_mday = t.day;
    tm.tm_hour = t.hour;
    tm.tm_min = t.minute;
    tm.tm_sec = t.second;
    tm.tm_wday = t.weekday;
    tm.tm_yday = t.yearday;
    tm.tm_isdst = -1;
    let mut buf = vec![0u8; 256 + 64 * f.as_bytes().len()];
    // SAFETY: buf has the length given, f ends with NUL, tm is filled in.
    let n = unsafe { libc::strftime(buf.as_mut_ptr().cast(), buf.len(), f.as_ptr(), &tm) };
    if n == 0 {
        return Err("the format makes too long a text".into());
    }
    buf.truncate(n);
    buf.remove(0);
    String::from_utf8(buf).map_err(|e| e.to_string())
}
