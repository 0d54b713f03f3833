//! Two encoders of one tokenizer.json: fastokens where it proves equal, tokenizers as the reference.

use std::str::FromStr;

use hf::Tokenizer;
use serde_json::{json, Value};

use crate::probe;

pub const FAST: &str = "fastokens 0.3.5";
pub const REFERENCE: &str = "tokenizers 0.23.2";

pub struct Model {
    reference: Tokenizer,
    fast: Option<fastokens::Tokenizer>,
    /// Why there is no fast encoder; empty if there is.
    fast_off: String,
    added: Vec<(u32, hf::AddedToken)>,
    normalizer_empty: bool,
}

/// Loads the reference with truncation and padding cleared: they belong to training, engines set their own.
pub fn reference(data: &[u8]) -> Result<Tokenizer, String> {
    let text = crate::utf8(data)?;
    let mut t = Tokenizer::from_str(text).map_err(|e| e.to_string())?;
    t.with_truncation(None).map_err(|e| e.to_string())?;
    t.with_padding(None);
    Ok(t)
}

impl Model {
    pub fn open(data: &[u8]) -> Result<Model, String> {
        let json: Value = serde_json::from_slice(data).map_err(|e| e.to_string())?;
        if !json.is_object() {
            return Err("not a JSON object".into());
        }
        let reference = reference(data)?;
        let mut added: Vec<_> = reference.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let normalizer_empty = is_empty(json.get("normalizer"), "normalizers");
        let mut m = Model { reference, fast: None, fast_off: String::new(), added, normalizer_empty };
        match m.try_fast(json) {
            Ok(f) => m.fast = Some(f),
            Err(why) => m.fast_off = why,
        }
        Ok(m)
    }

    /// The fast encoder, if it accepts the file and agrees with the reference on every probe. It is known
    /// to ignore single_word, so such files are left to the reference whatever the probes say.
    fn try_fast(&self, json: Value) -> Result<fastokens::Tokenizer, String> {
        if let Some((_, t)) = self.added.iter().find(|(_, t)| t.single_word) {
            return Err(format!("added token {:?} is single_word", t.content));
        }
        let mut f = crate::guard(|| fastokens::Tokenizer::from_json(json).map_err(|e| e.to_string()))?;
        f.set_truncation(None);
        f.set_padding(None);
        for (i, text) in probe::texts(&self.added).iter().enumerate() {
            for special in [false, true] {
                let want = encode_reference(&self.reference, text, special)?;
                let got = crate::guard(|| encode_fast(&f, text, special))?;
                if got != want {
                    let at = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
                    return Err(format!("differs from {REFERENCE} on probe {i}, token {at}"));
                }
            }
        }
        Ok(f)
    }

    pub fn encode(&self, reference: bool, text: &str, special: bool) -> Result<Vec<u32>, String> {
        match &self.fast {
            Some(f) if !reference => encode_fast(f, text, special),
            _ => encode_reference(&self.reference, text, special),
        }
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        self.reference.decode(ids, false).map_err(|e| e.to_string())
    }

    pub fn info(&self) -> String {
        let added: Vec<Value> = self
            .added
            .iter()
            .map(|(id, t)| {
                json!({"id": id, "content": t.content, "special": t.special, "normalized": t.normalized,
                    "lstrip": t.lstrip, "rstrip": t.rstrip, "single_word": t.single_word})
            })
            .collect();
        json!({
            "encoder": if self.fast.is_some() { FAST } else { REFERENCE },
            "fast_off": self.fast_off,
            "normalizer_empty": self.normalizer_empty,
            "vocab_size": self.reference.get_vocab_size(true),
            "added": added,
        })
        .to_string()
    }
}

/// Whether a stage of the pipeline does nothing: absent, or a sequence of nothing.
fn is_empty(stage: Option<&Value>, list: &str) -> bool {
    match stage {
        None | Some(Value::Null) => true,
        Some(v) if v["type"] == "Sequence" => {
            v[list].as_array().is_some_and(|l| l.iter().all(|s| is_empty(Some(s), list)))
        }
        _ => false,
    }
}

fn encode_reference(t: &Tokenizer, text: &str, special: bool) -> Result<Vec<u32>, String> {
    let e = t.encode_fast(text, special).map_err(|e| e.to_string())?;
    Ok(e.get_ids().to_vec())
}

fn encode_fast(t: &fastokens::Tokenizer, text: &str, special: bool) -> Result<Vec<u32>, String> {
    t.encode_with_special_tokens(text, special).map_err(|e| e.to_string())
}
