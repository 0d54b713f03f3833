//! Filters, tests and the printing of values as Jinja2 under transformers has them, where minijinja's own
//! do something else.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{escape_formatter, Environment, Error, ErrorKind, Output, State};

use crate::methods::lines;
use crate::python::{self, is_space, Dump};

pub fn add(env: &mut Environment<'_>) {
    env.set_formatter(write_value);
    env.add_filter("tojson", tojson);
    env.add_filter("trim", trim);
    env.add_filter("string", to_string);
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("truncate", truncate);
    for name in ["e", "escape", "forceescape"] {
        env.add_filter(name, escape);
    }
    env.add_filter("attr", attr);
    env.add_test("iterable", |v: &Value| !v.is_none() && v.try_iter().is_ok());
    env.add_test("sequence", is_sequence);
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
}

/// str(v) as a new string.
fn text(v: &Value) -> Result<String, Error> {
    let mut s = String::new();
    python::write_str(&mut s, v)?;
    Ok(s)
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// {{ v }}: str(v).
fn write_value(out: &mut Output, state: &mut State, v: &Value) -> Result<(), Error> {
    if let Some(s) = v.as_str() {
        return out.write_str(s).map_err(Error::from);
    }
    match v.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => out.write_str(&text(v)?).map_err(Error::from),
        _ => escape_formatter(out, state, v),
    }
}

fn to_string(v: &Value) -> Result<Value, Error> {
    if v.kind() == ValueKind::String {
        return Ok(v.clone());
    }
    text(v).map(Value::from)
}

/// The arguments of a filter in Python's manner: by position, then by name; None counts as not given.
struct Args<'a> {
    positional: std::slice::Iter<'a, Value>,
    named: &'a Kwargs,
}

impl<'a> Args<'a> {
    fn new(positional: &'a [Value], named: &'a Kwargs) -> Args<'a> {
        Args { positional: positional.iter(), named }
    }

    fn next(&mut self, name: &str) -> Result<Option<Value>, Error> {
        let given: Option<Value> = match self.positional.next() {
            Some(v) => Some(v.clone()),
            None => self.named.get(name)?,
        };
        Ok(given.filter(|v| !v.is_none()))
    }

    fn flag(&mut self, name: &str) -> Result<bool, Error> {
        Ok(self.next(name)?.is_some_and(|v| v.is_true()))
    }

    fn end(mut self) -> Result<(), Error> {
        if self.positional.next().is_some() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.named.assert_all_used()
    }
}

/// An indentation: a string, or a number of spaces.
fn indentation(v: Value) -> Result<String, Error> {
    match v.as_str() {
        Some(s) => Ok(s.to_string()),
        None => Ok(" ".repeat(i64::try_from(v)?.clamp(0, 1000) as usize)),
    }
}

/// tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
fn tojson(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut args = Args::new(&args, &kwargs);
    let ascii = args.flag("ensure_ascii")?;
    let indent = args.next("indent")?.map(indentation).transpose()?;
    let (item_sep, key_sep) = match args.next("separators")? {
        Some(v) => (v.get_item_by_index(0)?.to_string(), v.get_item_by_index(1)?.to_string()),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let sort_keys = args.flag("sort_keys")?;
    args.end()?;
    Dump { ascii, indent, item_sep, key_sep, sort_keys }.dumps(v).map(Value::from)
}

fn trim(v: &Value, chars: Option<&str>) -> Result<Value, Error> {
    let s = text(v)?;
    Ok(Value::from(match chars {
        Some(c) => s.trim_matches(|x| c.contains(x)),
        None => s.trim_matches(is_space),
    }))
}

/// join(value, d='', attribute=None).
fn join(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut args = Args::new(&args, &kwargs);
    let sep = args.next("d")?.map_or(Ok(String::new()), |v| text(&v))?;
    let attribute = args.next("attribute")?;
    args.end()?;
    if v.is_none() {
        return Err(invalid("none is not iterable"));
    }
    let mut out = String::new();
    for (i, item) in v.try_iter()?.checked().enumerate() {
        let mut item = item?;
        if i > 0 {
            out.push_str(&sep);
        }
        if let Some(path) = &attribute {
            for part in path.to_string().split('.') {
                item = match part.parse::<usize>() {
                    Ok(i) => item.get_item_by_index(i)?,
                    Err(_) => item.get_item(&Value::from(part))?,
                };
            }
        }
        python::write_str(&mut out, &item)?;
    }
    Ok(Value::from(out))
}

/// indent(s, width=4, first=False, blank=False).
fn indent(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut args = Args::new(&args, &kwargs);
    let pad = args.next("width")?.map_or(Ok("    ".into()), indentation)?;
    let (first, blank) = (args.flag("first")?, args.flag("blank")?);
    args.end()?;
    let s = text(v)? + "\n";
    let mut out = String::with_capacity(s.len() + s.len() / 4);
    for (i, line) in lines(&s, false).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if i == 0 && first || i > 0 && (blank || !line.is_empty()) {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// int(value, default=0, base=10).
fn int(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut args = Args::new(&args, &kwargs);
    let default = args.next("default")?.unwrap_or(Value::from(0));
    let base = args.next("base")?.map_or(Ok(10), u32::try_from)?;
    args.end()?;
    if !(2..=36).contains(&base) {
        return Err(invalid("the base is not between 2 and 36"));
    }
    if v.is_integer() {
        return Ok(v.clone());
    }
    if let Ok(b) = bool::try_from(v.clone()) {
        return Ok(Value::from(i64::from(b)));
    }
    if let Some(s) = v.as_str() {
        if let Ok(i) = i128::from_str_radix(&digits(s), base) {
            return Ok(Value::from(i));
        }
    }
    match as_float(v).filter(|f| f.abs() < 1e38) {
        Some(f) => Ok(Value::from(f.trunc() as i128)),
        None => Ok(default),
    }
}

/// float(value, default=0.0).
fn float(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut args = Args::new(&args, &kwargs);
    let default = args.next("default")?.unwrap_or(Value::from(0.0));
    args.end()?;
    Ok(as_float(v).map_or(default, Value::from))
}

/// A number's text without the white space around it and the underscores within.
fn digits(s: &str) -> String {
    s.trim_matches(is_space).replace('_', "")
}

fn as_float(v: &Value) -> Option<f64> {
    match v.as_str() {
        Some(s) => digits(s).parse().ok(),
        None if matches!(v.kind(), ValueKind::Number | ValueKind::Bool) => f64::try_from(v.clone()).ok(),
        None => None,
    }
}

/// truncate(s, length=255, killwords=False, end='...', leeway=5).
fn truncate(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut args = Args::new(&args, &kwargs);
    let length = args.next("length")?.map_or(Ok(255), usize::try_from)?;
    let kill = args.flag("killwords")?;
    let end = args.next("end")?.map_or(Ok("...".into()), |v| text(&v))?;
    let leeway = args.next("leeway")?.map_or(Ok(5), usize::try_from)?;
    args.end()?;
    let s = text(v)?;
    if s.chars().count() <= length.saturating_add(leeway) {
        return Ok(Value::from(s));
    }
    let room = length.checked_sub(end.chars().count()).ok_or_else(|| invalid("the length is below that of the end"))?;
    let cut: String = s.chars().take(room).collect();
    let kept = if kill { &cut } else { cut.rsplit_once(' ').map_or(cut.as_str(), |(a, _)| a) };
    Ok(Value::from(format!("{kept}{end}")))
}

/// markupsafe.escape.
fn escape(v: &Value) -> Result<Value, Error> {
    let s = text(v)?;
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(Value::from(out))
}

/// attr(obj, name): attributes only, of which the items of a mapping are none.
fn attr(v: &Value, name: &str) -> Result<Value, Error> {
    if v.kind() == ValueKind::Map {
        return Ok(Value::UNDEFINED);
    }
    v.get_attr(name)
}

/// Jinja2 asks for a length and items by index: strings, lists, tuples and mappings have both, and so
/// does what is undefined.
fn is_sequence(v: &Value) -> bool {
    matches!(v.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
}
