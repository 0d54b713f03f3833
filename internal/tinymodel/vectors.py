"""Writes what Python makes of the tiny model: ids of tokenizers, renders of transformers.

    python internal/tinymodel/vectors.py > internal/tinymodel/testdata/vectors.json
"""

import json
import pathlib

from transformers import AutoTokenizer

TEXTS = [
    "", "a", " ", "\n", "hello world", "Hello, World! It's 2024; we'll see.", "  two  spaces \t tab\r\n\r\nlines\n\n", "func (m *Model) Tokenize(ctx context.Context) error {\n\treturn nil\n}\n",
    "naïve café — “quotes” … ﬁ ſ", "天氣很好。今天", "нет, спасибо", "مرحبا بالعالم", "😀👩‍👩‍👧🏽", "NUL \x00 and \x01", "<|im_start|>user\nhi<|im_end|>\n", "x<|im_start|><|im_end|>y<|endoftext|>",
    "<|im_start", "<tool_call>\n{\"a\": 1}\n</tool_call>", "<think>\n\n</think>\n\n", "1234567890", "a" * 300, " " * 100, "\u00a0\u2003x\u0085y", "'S 'LL 'd", "日本語 テキスト\u3000全角",
]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather <now> & \"é\"", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "n": [1.0, 1e-7, 10**20]}}}
CALLS = [{"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Oslo", "days": 2.5}}}, {"id": "2", "type": "function", "function": {"name": "now", "arguments": "{}"}}]
SYS, USER = {"role": "system", "content": "You are terse."}, {"role": "user", "content": "What is the weather?\n"}
CHATS = [
    {"messages": [USER]}, {"messages": [SYS, USER], "add_generation_prompt": True}, {"messages": [SYS, USER], "tools": [TOOL], "add_generation_prompt": True}, {"messages": [USER], "tools": [TOOL, TOOL]},
    {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": CALLS}, {"role": "tool", "content": "4 °C"}, {"role": "tool", "content": "noon"}, USER], "tools": [TOOL], "add_generation_prompt": True},
    {"messages": [USER, {"role": "assistant", "content": "Cold.", "reasoning_content": "hm"}, USER], "add_generation_prompt": True, "enable_thinking": False},
    {"messages": [{"role": "tool", "content": "x"}, SYS]},
    {"messages": [USER, {"role": "assistant", "content": "It is "}], "continue_final_message": True},
]

tok = AutoTokenizer.from_pretrained(pathlib.Path(__file__).parent / "model")
out = {
    "texts": [{"text": t, "ids": tok.encode(t, add_special_tokens=False)} for t in TEXTS],
    "chats": [{"body": c, "text": tok.apply_chat_template(c["messages"], tokenize=False, **{k: v for k, v in c.items() if k != "messages"})} for c in CHATS],
}
print(json.dumps(out, ensure_ascii=False))
