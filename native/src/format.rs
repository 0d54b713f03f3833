//! Whether a template wants the content of a message as a string or as parts, decided as the engines do:
//! by whether its source loops over the content of a message.

use minijinja::machinery::ast::{Expr, Stmt};

/// What loops over message content look like to each engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantsParts {
    /// vLLM follows assignments from `messages` to the variable of a loop over it.
    pub vllm: bool,
    /// SGLang knows the usual names of that variable, and takes any mention of other media for a yes.
    pub sglang: bool,
}

pub fn detect(root: &Stmt, source: &str) -> WantsParts {
    let mut found = Found::default();
    found.walk(root);
    let media = ["image", "audio", "video", "vision"].iter().any(|w| source.contains(w));
    let named = ["message", "msg", "m"];
    let sglang = media || found.loops.iter().any(|(_, iter)| named.iter().any(|n| accesses(iter, n, Some("content"))));
    WantsParts { vllm: found.vllm(), sglang }
}

#[derive(Default)]
struct Found<'t, 's> {
    /// Target and right-hand side of every assignment, target and subject of every loop.
    sets: Vec<(&'t Expr<'s>, &'t Expr<'s>)>,
    loops: Vec<(&'t Expr<'s>, &'t Expr<'s>)>,
}

impl<'t, 's> Found<'t, 's> {
    /// A target that is not a plain name makes vLLM give up and take strings.
    fn vllm(&self) -> bool {
        let Some(lists) = self.assigned_from("messages") else { return false };
        let mut items: Vec<&str> = Vec::new();
        for (target, iter) in &self.loops {
            if lists.iter().any(|v| accesses(iter, v, None)) {
                let Expr::Var(v) = target else { return false };
                items.push(v.id);
            }
        }
        let content = self.loops.iter().find(|(_, iter)| items.iter().any(|v| accesses(iter, v, Some("content"))));
        matches!(content, Some((Expr::Var(_), _)))
    }

    fn assigned_from(&self, name: &'s str) -> Option<Vec<&'s str>> {
        let mut names = vec![name];
        let mut i = 0;
        while i < names.len() {
            for (target, value) in &self.sets {
                if accesses(value, names[i], None) {
                    let Expr::Var(v) = target else { return None };
                    if !names.contains(&v.id) {
                        names.push(v.id);
                    }
                }
            }
            i += 1;
        }
        Some(names)
    }

    fn walk_all(&mut self, body: &'t [Stmt<'s>]) {
        for s in body {
            self.walk(s);
        }
    }

    fn walk(&mut self, s: &'t Stmt<'s>) {
        match s {
            Stmt::Template(t) => self.walk_all(&t.children),
            Stmt::ForLoop(l) => {
                self.loops.push((&l.target, &l.iter));
                self.walk_all(&l.body);
                self.walk_all(&l.else_body);
            }
            Stmt::IfCond(c) => {
                self.walk_all(&c.true_body);
                self.walk_all(&c.false_body);
            }
            Stmt::Set(a) => self.sets.push((&a.target, &a.expr)),
            Stmt::WithBlock(b) => self.walk_all(&b.body),
            Stmt::SetBlock(b) => self.walk_all(&b.body),
            Stmt::AutoEscape(b) => self.walk_all(&b.body),
            Stmt::FilterBlock(b) => self.walk_all(&b.body),
            Stmt::Block(b) => self.walk_all(&b.body),
            Stmt::Macro(m) => self.walk_all(&m.body),
            Stmt::CallBlock(c) => self.walk_all(&c.macro_decl.body),
            _ => {}
        }
    }
}

/// Whether e is the variable (or with key, that item of it), perhaps filtered, tested or sliced.
fn accesses(e: &Expr, var: &str, key: Option<&str>) -> bool {
    match e {
        Expr::Filter(f) => f.expr.as_ref().is_some_and(|e| accesses(e, var, key)),
        Expr::Test(t) => accesses(&t.expr, var, key),
        Expr::Slice(s) => accesses(&s.expr, var, key),
        Expr::Var(v) => key.is_none() && v.id == var,
        Expr::GetAttr(a) => key == Some(a.name) && accesses_plain(&a.expr, var),
        Expr::GetItem(i) => {
            let is_key = matches!(&i.subscript_expr, Expr::Const(c) if key.is_some() && c.value.as_str() == key);
            is_key && accesses_plain(&i.expr, var)
        }
        _ => false,
    }
}

fn accesses_plain(e: &Expr, var: &str) -> bool {
    matches!(e, Expr::Var(v) if v.id == var)
}
