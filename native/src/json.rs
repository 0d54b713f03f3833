//! JSON into template values as Python's json module reads it: key order kept, the last of equal keys
//! wins, integers stay integers (-0 is 0), 1.0 stays a float.

use minijinja::Value;

/// Python gives up near a thousand; rendering recurses too, so stop well before the stack ends.
const MAX_DEPTH: usize = 256;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

pub fn parse(text: &str) -> Result<Value, String> {
    let mut p = Parser { text, at: 0, depth: 0 };
    let v = p.value()?;
    p.space();
    if p.at != text.len() {
        return Err(p.error("data after the value"));
    }
    Ok(v)
}

impl Parser<'_> {
    fn error(&self, what: &str) -> String {
        format!("JSON byte {}: {what}", self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn literal(&mut self, word: &str, v: Value) -> Result<Value, String> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            return Ok(v);
        }
        Err(self.error("unknown word"))
    }

    fn value(&mut self) -> Result<Value, String> {
        self.space();
        match self.peek() {
            None => Err(self.error("ends early")),
            Some(b'"') => Ok(Value::from(self.string()?)),
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b't') => self.literal("true", Value::from(true)),
            Some(b'f') => self.literal("false", Value::from(false)),
            Some(b'n') => self.literal("null", Value::from(())),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.error("unexpected character")),
        }
    }

    fn nested(&mut self, f: fn(&mut Self) -> Result<Value, String>) -> Result<Value, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        self.at += 1;
        let v = f(self)?;
        self.depth -= 1;
        Ok(v)
    }

    fn object(&mut self) -> Result<Value, String> {
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::from_pairs(pairs));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key"));
            }
            let key = Value::from(self.string()?);
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.error("expected a colon"));
            }
            self.at += 1;
            pairs.push((key, self.value()?));
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::from_pairs(pairs));
                }
                _ => return Err(self.error("expected a comma or the end of the object")),
            }
        }
    }

    fn array(&mut self) -> Result<Value, String> {
        let mut items: Vec<Value> = Vec::new();
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::from(items));
        }
        loop {
            items.push(self.value()?);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::from(items));
                }
                _ => return Err(self.error("expected a comma or the end of the array")),
            }
        }
    }

    fn digits(&mut self) -> Result<(), String> {
        let from = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == from {
            return Err(self.error("expected a digit"));
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Value, String> {
        let from = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let mut float = false;
        if self.peek() == Some(b'.') {
            float = true;
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            float = true;
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        let s = &self.text[from..self.at];
        if float {
            return s.parse::<f64>().map(Value::from).map_err(|_| self.error("bad number"));
        }
        if let Ok(i) = s.parse::<i64>() {
            return Ok(Value::from(i));
        }
        s.parse::<i128>().map(Value::from).map_err(|_| self.error("integer beyond 128 bits"))
    }

    fn string(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut out = String::new();
        let bytes = self.text.as_bytes();
        loop {
            let from = self.at;
            while self.at < bytes.len() && bytes[self.at] != b'"' && bytes[self.at] != b'\\' {
                if bytes[self.at] < b' ' {
                    return Err(self.error("control character in a string"));
                }
                self.at += 1;
            }
            // Quote, backslash and the end are boundaries of characters.
            out.push_str(&self.text[from..self.at]);
            match self.peek() {
                None => return Err(self.error("ends within a string")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                _ => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, String> {
        let c = self.peek().ok_or_else(|| self.error("ends within an escape"))?;
        self.at += 1;
        Ok(match c {
            b'"' | b'\\' | b'/' => c as char,
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let hi = self.hex4()?;
                let code = match hi {
                    0xd800..=0xdbff => {
                        if !self.text[self.at..].starts_with("\\u") {
                            return Err(self.error("lone surrogate"));
                        }
                        self.at += 2;
                        let lo = self.hex4()?;
                        if !(0xdc00..=0xdfff).contains(&lo) {
                            return Err(self.error("lone surrogate"));
                        }
                        0x10000 + ((hi - 0xd800) << 10) + (lo - 0xdc00)
                    }
                    _ => hi,
                };
                char::from_u32(code).ok_or_else(|| self.error("lone surrogate"))?
            }
            _ => return Err(self.error("unknown escape")),
        })
    }

    fn hex4(&mut self) -> Result<u32, String> {
        let b = self.text.as_bytes().get(self.at..self.at + 4);
        let v = b
            .filter(|b| b.iter().all(u8::is_ascii_hexdigit))
            .and_then(|b| std::str::from_utf8(b).ok())
            .and_then(|s| u32::from_str_radix(s, 16).ok());
        match v {
            Some(v) => {
                self.at += 4;
                Ok(v)
            }
            None => Err(self.error("bad \\u escape")),
        }
    }
}
