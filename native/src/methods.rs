//! Methods of Python's str, dict and list that minijinja's own callback lacks or does otherwise: white
//! space and line ends as Python has them, keyword arguments, optional bounds.

use minijinja::value::{from_args, Kwargs, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::python::is_space;

/// Calls a method of a value, for Environment::set_unknown_method_callback.
pub fn call(state: &mut State, v: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match v.kind() {
        ValueKind::String => string(v.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Map if method == "copy" => {
            let () = from_args(args)?;
            Some(v.clone())
        }
        ValueKind::Seq => list(v, method, args)?,
        _ => None,
    };
    match own {
        Some(r) => Ok(r),
        None => unknown_method_callback(state, v, method, args),
    }
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn list(v: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match method {
        "copy" => {
            let () = from_args(args)?;
            Some(v.clone())
        }
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            for (i, item) in v.try_iter()?.checked().enumerate() {
                if item? == *what {
                    return Ok(Some(Value::from(i)));
                }
            }
            return Err(invalid("value is not in list"));
        }
        _ => None,
    })
}

fn string(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let flag = |b: bool| Ok(Some(Value::from(b)));
    let text = |t: &str| Ok(Some(Value::from(t)));
    match method {
        "strip" | "lstrip" | "rstrip" => text(strip(s, method, args)?),
        "split" | "rsplit" => split(s, method == "rsplit", args).map(Some),
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.map_or_else(|| kwargs.get::<Option<bool>>("keepends"), |k| Ok(Some(k)))?;
            kwargs.assert_all_used()?;
            Ok(Some(lines(s, keep.unwrap_or(false)).into_iter().map(Value::from).collect()))
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            if sep.is_empty() {
                return Err(invalid("empty separator"));
            }
            let found = if method == "partition" { s.find(sep) } else { s.rfind(sep) };
            let parts = match found {
                Some(i) => [&s[..i], sep, &s[i + sep.len()..]],
                None if method == "partition" => [s, "", ""],
                None => ["", "", s],
            };
            Ok(Some(Value::from_object(Tuple::from(parts.map(Value::from)))))
        }
        "removeprefix" => {
            let (p,): (&str,) = from_args(args)?;
            text(s.strip_prefix(p).unwrap_or(s))
        }
        "removesuffix" => {
            let (p,): (&str,) = from_args(args)?;
            text(s.strip_suffix(p).unwrap_or(s))
        }
        "isspace" => {
            let () = from_args(args)?;
            flag(!s.is_empty() && s.chars().all(is_space))
        }
        "isdecimal" => {
            let () = from_args(args)?;
            flag(!s.is_empty() && s.chars().all(|c| c.is_ascii_digit()))
        }
        "casefold" => {
            let () = from_args(args)?;
            text(&s.to_lowercase().replace('ß', "ss"))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            text(&s.chars().map(swap).collect::<String>())
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(s, method, args).map(Some),
        "startswith" | "endswith" if args.len() > 1 => {
            let (what, from, to): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let part = bounded(s, from, to).map_or("", |(_, p)| p);
            let test = |p: &str| if method == "startswith" { part.starts_with(p) } else { part.ends_with(p) };
            match what.as_str() {
                Some(p) => flag(test(p)),
                None => flag(what.try_iter()?.any(|p| p.as_str().is_some_and(test))),
            }
        }
        "zfill" | "ljust" | "rjust" | "center" => pad(s, method, args).map(Some),
        _ => Ok(None),
    }
}

fn strip<'a>(s: &'a str, method: &str, args: &[Value]) -> Result<&'a str, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let drop = |c: char| match chars {
        Some(set) => set.contains(c),
        None => is_space(c),
    };
    Ok(match method {
        "lstrip" => s.trim_start_matches(drop),
        "rstrip" => s.trim_end_matches(drop),
        _ => s.trim_matches(drop),
    })
}

/// split and rsplit; the pieces of white space splits are never empty.
fn split(s: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (sep, max, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let sep = sep.map_or_else(|| kwargs.get::<Option<Value>>("sep"), |v| Ok(Some(v)))?.filter(|v| !v.is_none());
    let max = max.map_or_else(|| kwargs.get::<Option<i64>>("maxsplit"), |m| Ok(Some(m)))?.unwrap_or(-1);
    kwargs.assert_all_used()?;
    let limit = if max < 0 { usize::MAX } else { max as usize };
    let parts: Vec<&str> = match &sep {
        Some(v) => {
            let sep = v.as_str().ok_or_else(|| invalid("separator must be a string"))?;
            if sep.is_empty() {
                return Err(invalid("empty separator"));
            }
            if from_right {
                let mut p: Vec<&str> = s.rsplitn(limit.saturating_add(1), sep).collect();
                p.reverse();
                p
            } else {
                s.splitn(limit.saturating_add(1), sep).collect()
            }
        }
        None => split_space(s, from_right, limit),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn split_space(s: &str, from_right: bool, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_matches(is_space);
    if !from_right {
        rest = s.trim_start_matches(is_space);
    }
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(if from_right { rest.trim_end_matches(is_space) } else { rest });
            break;
        }
        if from_right {
            let at = rest.char_indices().rev().find(|&(_, c)| is_space(c)).map_or(0, |(i, c)| i + c.len_utf8());
            parts.push(&rest[at..]);
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            let at = rest.find(is_space).unwrap_or(rest.len());
            parts.push(&rest[..at]);
            rest = rest[at..].trim_start_matches(is_space);
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// str.splitlines: every line end Unicode knows, \r\n as one.
pub fn lines(s: &str, keep: bool) -> Vec<&str> {
    let is_end =
        |c: char| matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut out = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        let Some((at, c)) = rest.char_indices().find(|&(_, c)| is_end(c)) else {
            out.push(rest);
            break;
        };
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { c.len_utf8() };
        out.push(if keep { &rest[..end] } else { &rest[..at] });
        rest = &rest[end..];
    }
    out
}

/// The characters s[from:to] with the byte where they begin; None if from is beyond the end.
fn bounded(s: &str, from: Option<i64>, to: Option<i64>) -> Option<(usize, &str)> {
    let n = s.chars().count() as i64;
    let place = |i: i64| if i < 0 { (i + n).max(0) } else { i.min(n) };
    let byte = |i: i64| s.char_indices().nth(i as usize).map_or(s.len(), |(b, _)| b);
    let from = from.unwrap_or(0);
    if from > n {
        return None;
    }
    let (a, z) = (byte(place(from)), byte(place(to.unwrap_or(n))));
    Some((a, if a <= z { &s[a..z] } else { "" }))
}

fn search(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, from, to): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((start, part)) = bounded(s, from, to) else {
        return match method {
            "index" | "rindex" => Err(invalid("substring not found")),
            "count" => Ok(Value::from(0)),
            _ => Ok(Value::from(-1)),
        };
    };
    if method == "count" {
        return Ok(Value::from(part.matches(what).count()));
    }
    let found = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
    match found {
        Some(i) => Ok(Value::from(s[..start + i].chars().count())),
        None if method.ends_with("index") => Err(invalid("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn pad(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(" ");
    if fill.chars().count() != 1 || width > 1 << 20 {
        return Err(invalid("bad width or fill character"));
    }
    let n = width.saturating_sub(s.chars().count());
    Ok(Value::from(match method {
        "ljust" => format!("{s}{}", fill.repeat(n)),
        "rjust" => format!("{}{s}", fill.repeat(n)),
        "zfill" => {
            let sign = usize::from(s.starts_with(['+', '-']));
            format!("{}{}{}", &s[..sign], "0".repeat(n), &s[sign..])
        }
        _ => {
            // CPython leans left or right by the parity of both.
            let left = n / 2 + (n & width & 1);
            format!("{}{s}{}", fill.repeat(left), fill.repeat(n - left))
        }
    }))
}
