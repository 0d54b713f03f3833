//! Texts both encoders must agree on before the fast one is trusted with a model.

const FIXED: &[&str] = &[
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    " \n \t\r\n",
    "a",
    "\0",
    "a\0b \0",
    "Hello, world!",
    " leading and trailing ",
    "The quick brown fox jumps over the lazy dog. 1234567890 3.14159 1,000,000",
    "I'm you're he'll WE'VE don't IT'S 'tis 'quoted'",
    "def f(x: int) -> str:\n    return f\"{x!r}\"\n\n\n\tif x:\n\t\tpass\n",
    "func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {\n\tfmt.Fprintf(w, \"%d\", 0x1F)\n}\n",
    "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}",
    "<html><body class=\"x\">&amp; &#39;</body></html>",
    "https://example.com/a/b?c=d&e=%20f#g user@example.com",
    "SELECT * FROM t WHERE x >= 10 AND y <> 'z' -- comment",
    "snake_case camelCase PascalCase SCREAMING_SNAKE kebab-case",
    "!!! ??? ... --- === *** ~~~ ``` ``",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "                                                                  x",
    "\t\t\t\t x \t\t\t\t",
    "x\n\n\n\n   \n\n  y",
    "Les élèves français mangèrent; où ça? naïve cœur «guillemets»",
    "Straße, Größe, Übung, äöüß",
    "Привет, мир! Съешь же ещё этих мягких французских булок",
    "Γειά σου Κόσμε, ὀδύσσεια",
    "你好，世界！今天天气很好。繁體中文",
    "こんにちは世界。カタカナ　全角スペース",
    "안녕하세요 세계",
    "สวัสดีชาวโลก",
    "नमस्ते दुनिया क्षत्रिय",
    "مرحبا بالعالم ١٢٣ \u{200f}rtl",
    "שלום עולם",
    "Tiếng Việt có dấu",
    "e\u{301} vs é, o\u{308} vs ö, \u{212b} \u{fb01} \u{2126}",
    "\u{1100}\u{1161}\u{11a8} 각",
    "😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ☃️ ❤",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𐍈 𠜎",
    "\u{feff}bom \u{200b}zero \u{00a0}nbsp \u{2003}em \u{3000}ideo \u{85}nel \u{2028}ls",
    "½ ² ³ Ⅷ ① ٣ 四",
    "\u{7f}\u{1}\u{2}\u{1b}[31m",
    "\u{fffd} \u{e000} \u{10ffff}",
    "1 12 123 1234 12345 123456 1234567 1 234 567,89",
    "a1b2c3 4x4 v1.2.3-rc4+build.5 0b1010 1e-9",
    "<s> </s> <unk> <pad> [INST] [/INST] <<SYS>> <|im_start|>user\nhi<|im_end|>",
    "<think>\nstep\n</think>\n\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
    "▁metaspace ▁▁ x▁y _ ▂",
];

/// How many added tokens are tried, at most: some vocabularies have thousands, alike but for a number.
const MAX_ADDED: usize = 96;

/// The fixed texts, and every kind of added token in the company of letters, spaces and itself.
pub fn texts(added: &[(u32, hf::AddedToken)]) -> Vec<String> {
    let mut out: Vec<String> = FIXED.iter().map(|s| s.to_string()).collect();
    out.push(FIXED.join("\n"));
    let odd = |t: &hf::AddedToken| t.lstrip || t.rstrip || t.normalized || t.single_word || !t.special;
    let mut picked: Vec<&str> = Vec::new();
    for want_odd in [true, false] {
        let kind: Vec<&str> =
            added.iter().filter(|(_, t)| odd(t) == want_odd).map(|(_, t)| t.content.as_str()).collect();
        let step = kind.len().div_ceil(MAX_ADDED / 2).max(1);
        picked.extend(kind.iter().step_by(step));
    }
    for (i, t) in picked.iter().enumerate() {
        let next = picked[(i + 1) % picked.len()];
        out.push(format!("{t}user\nx{t} y {t}\n\n {t}{next}{t}é{t}1 {next}"));
        let cut = t.char_indices().last().map_or(0, |(i, _)| i);
        out.push(format!("a{}{t} {}", &t[..cut], &t[..cut]));
    }
    out
}
