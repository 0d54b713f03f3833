//! Chat templates: minijinja set up to render what Jinja2 renders in transformers' environment (trimmed
//! blocks, loop controls, its tojson, raise_exception, strftime_now, generation blocks).

use std::cell::Cell;
use std::fmt;

use minijinja::machinery;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::json;

use crate::format::{self, WantsParts};
use crate::python::{self, is_space, CivilTime};
use crate::{filters, methods};

const NAME: &str = "chat_template";

/// Instructions, and units of 64 bytes, a render may use. Real templates on the largest bodies stay far
/// below; a template that loops for ever ends here.
const FUEL: u64 = 50_000_000;

thread_local! {
    /// What strftime_now sees in the render running on this thread.
    static NOW: Cell<Option<CivilTime>> = const { Cell::new(None) };
}

pub struct Template {
    env: Environment<'static>,
    wants: WantsParts,
}

/// Why a render failed.
pub struct Failure {
    /// "raised" (the template's own raise_exception), "vars" (not a JSON object) or "template".
    kind: &'static str,
    /// What went wrong, without any value in it: fit for logs.
    what: String,
    /// The whole message, which may quote the prompt.
    detail: String,
    line: usize,
}

impl Failure {
    pub fn internal(detail: String) -> Failure {
        Failure { kind: "template", what: "internal error".into(), detail, line: 0 }
    }

    fn vars(what: String) -> Failure {
        Failure { kind: "vars", detail: what.clone(), what, line: 0 }
    }

    pub fn to_json(&self) -> String {
        json!({"kind": self.kind, "what": self.what, "detail": self.detail, "line": self.line}).to_string()
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let line = e.line().unwrap_or(0);
        let mut source: Option<&dyn std::error::Error> = Some(&e);
        while let Some(s) = source {
            if let Some(r) = s.downcast_ref::<Raised>() {
                let what = "the template raised an exception".into();
                return Failure { kind: "raised", what, detail: r.0.clone(), line };
            }
            source = s.source();
        }
        // The details of these kinds name what the template's source names; others may quote values.
        let what = match (e.kind(), e.detail()) {
            (
                ErrorKind::UndefinedError
                | ErrorKind::UnknownMethod
                | ErrorKind::UnknownFilter
                | ErrorKind::UnknownTest
                | ErrorKind::UnknownFunction
                | ErrorKind::OutOfFuel
                | ErrorKind::SyntaxError,
                Some(d),
            ) => format!("{}: {d}", e.kind()),
            (kind, _) => kind.to_string(),
        };
        Failure { kind: "template", what, detail: e.to_string(), line }
    }
}

/// The cause of errors made by raise_exception.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl Template {
    pub fn compile(source: &str) -> Result<Template, String> {
        let source = generation_blocks(&normalize_newlines(source));
        let mut env = environment()?;
        let root = machinery::parse(&source, NAME, env.syntax().clone()).map_err(|e| e.to_string())?;
        let wants = format::detect(&root, &source);
        drop(root);
        env.add_template_owned(NAME, source).map_err(|e| e.to_string())?;
        Ok(Template { env, wants })
    }

    /// A JSON object of what is known about the template.
    pub fn info(&self) -> Result<String, String> {
        let t = self.env.get_template(NAME).map_err(|e| e.to_string())?;
        let mut vars: Vec<String> = t.undeclared_variables(false).into_iter().collect();
        vars.sort();
        Ok(json!({"variables": vars, "parts_vllm": self.wants.vllm, "parts_sglang": self.wants.sglang}).to_string())
    }

    pub fn render(&self, vars: &[u8], now: CivilTime) -> Result<String, Failure> {
        let text = crate::utf8(vars).map_err(Failure::vars)?;
        let ctx = crate::json::parse(text).map_err(Failure::vars)?;
        if ctx.kind() != ValueKind::Map {
            return Err(Failure::vars("the variables are not a JSON object".into()));
        }
        NOW.set(Some(now));
        let r = self.env.get_template(NAME).and_then(|t| t.render(ctx));
        NOW.set(None);
        Ok(r?)
    }
}

fn environment() -> Result<Environment<'static>, String> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(|e| e.to_string())?);
    minijinja_contrib::add_to_environment(&mut env);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(methods::call);
    filters::add(&mut env);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    Ok(env)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, raised.0.clone()).with_source(raised))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let now = NOW.get().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "no time was given"))?;
    python::strftime(format, now).map_err(|e| Error::new(ErrorKind::InvalidOperation, e))
}

/// Jinja2 reads \r\n and \r in a template as \n.
fn normalize_newlines(s: &str) -> String {
    if s.contains('\r') {
        s.replace("\r\n", "\n").replace('\r', "\n")
    } else {
        s.to_string()
    }
}

/// Turns transformers' {% generation %} blocks, which mark text for training and render as their content
/// in a scope of its own, into {% with %} blocks, which do just that. White space control stays, and so
/// does what is between {% raw %} and {% endraw %}.
fn generation_blocks(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut raw = false;
    let mut rest = s;
    while let Some(i) = rest.find("{%") {
        let (before, tag) = rest.split_at(i + 2);
        out.push_str(before);
        rest = tag;
        let name = tag.trim_start_matches(['-', '+']).trim_start_matches(is_space);
        for word in ["generation", "endgeneration", "raw", "endraw"] {
            let Some(end) = name.strip_prefix(word) else { continue };
            let end = end.trim_start_matches(is_space);
            if !end.trim_start_matches(['-', '+']).starts_with("%}") {
                continue;
            }
            match word {
                "raw" => raw = true,
                "endraw" => raw = false,
                _ if raw => {}
                _ => {
                    out.push_str(&tag[..tag.len() - name.len()]);
                    out.push_str(if word == "generation" { "with " } else { "endwith " });
                    rest = end;
                }
            }
            break;
        }
    }
    out.push_str(rest);
    out
}
