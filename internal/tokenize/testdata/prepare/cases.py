"""Writes cases.jsonl: bodies of /v1/chat/completions whose preparation is compared with the engines' own.

    python cases.py > cases.jsonl
"""

import json

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a place", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "ÜÅ 城市"}, "days": {"type": "integer"}}, "required": ["place"]}}}
BARE = {"type": "function", "function": {"parameters": {"z": 1, "a": 1.5}, "name": "now"}}
STRICT = {"function": {"strict": True, "name": "f", "x": 1}, "type": "function"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"place": "Oslo",  "days": 2}'}}
USER = {"role": "user", "content": "What is the weather?\n\"Now\" \\ \u0001 é 天 😀"}
SYS = {"role": "system", "content": "You are terse."}
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

cases: list[tuple[str, dict, dict]] = []


def case(name: str, body: dict, defaults: dict | None = None) -> None:
    cases.append((name, body, defaults or {}))


def chat(name: str, *messages: dict, defaults: dict | None = None, **body) -> None:
    case(name, {"model": "m", "messages": list(messages), **body}, defaults)


chat("user", USER)
chat("system and user", SYS, USER)
chat("unknown fields", {**USER, "x": 1, "name": "bob"}, temperature=0.5, foo=[1])
chat("parts", {"role": "user", "content": PARTS})
chat("one part", {"role": "user", "content": PARTS[:1]})
chat("no parts", {"role": "user", "content": []})
chat("system of parts", {"role": "system", "content": PARTS}, USER)
chat("assistant null", USER, {"role": "assistant", "content": None}, USER)
chat("assistant last", USER, {"role": "assistant", "content": "It is"})
chat("assistant last parts", USER, {"role": "assistant", "content": PARTS})
chat("continue", USER, {"role": "assistant", "content": "It is "}, continue_final_message=True, add_generation_prompt=False)
chat("continue parts", USER, {"role": "assistant", "content": PARTS}, continue_final_message=True, add_generation_prompt=False)
chat("no generation prompt", USER, add_generation_prompt=False)
chat("reasoning_content", USER, {"role": "assistant", "content": "a", "reasoning_content": "hm"}, USER)
chat("reasoning", USER, {"role": "assistant", "content": "a", "reasoning": "hm"}, USER)
chat("tools", USER, tools=[TOOL, BARE, STRICT])
chat("tools and choice none", USER, tools=[TOOL], tool_choice="none")
chat("tools and choice auto", USER, tools=[TOOL], tool_choice="auto")
chat("tools and chosen one", USER, tools=[TOOL, BARE], tool_choice={"type": "function", "function": {"name": "now"}})
chat("defer_loading", USER, tools=[{**TOOL, "defer_loading": True}, BARE])
chat("call and result", USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "4 °C"}, tools=[TOOL])
chat("call with index and extras", USER, {"role": "assistant", "content": "", "tool_calls": [{"index": 0, **CALL}]}, {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "x"}, tools=[TOOL])
chat("arguments empty", USER, {"role": "assistant", "content": "c", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}, USER)
chat("arguments odd spacing and numbers", USER, {"role": "assistant", "content": "c", "tool_calls": [{"id": "1", "type": "function", "function": {"arguments": ' {"b":[1, 2.50,{"c":null}],"a":"\\u00e9\\n"} ', "name": "now"}}]}, USER)
chat("arguments not JSON", USER, {"role": "assistant", "content": "c", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{"}}]}, USER)
chat("two calls", USER, {"role": "assistant", "tool_calls": [CALL, {**CALL, "id": "call_2"}]}, {"role": "tool", "tool_call_id": "call_2", "content": "b"}, {"role": "tool", "tool_call_id": "call_1", "content": "a"})
chat("no calls", USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER)
chat("result of parts", USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": PARTS})
chat("developer", {"role": "developer", "content": "Be kind."}, USER)
chat("developer behind system", SYS, {"role": "developer", "content": "Be kind."}, USER, {"role": "system", "content": "x"})
chat("documents", USER, documents=[{"title": "t", "text": "d"}])
chat("kwargs", USER, chat_template_kwargs={"enable_thinking": False, "custom": {"b": 1, "a": [None]}})
chat("kwargs null and auto", USER, chat_template_kwargs={"custom": None, "other": "auto"}, defaults={"custom": 1, "other": 2})
chat("kwargs and defaults", USER, chat_template_kwargs={"custom": 2}, defaults={"custom": 1, "other": 3})
chat("kwargs against fields", USER, chat_template_kwargs={"add_generation_prompt": False})
chat("effort", USER, reasoning_effort="low")
chat("effort none", USER, reasoning_effort="none")
chat("effort and thinking", USER, reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
chat("effort in kwargs", USER, chat_template_kwargs={"reasoning_effort": "high"})
chat("effort in defaults", USER, defaults={"reasoning_effort": "high", "enable_thinking": False})
chat("effort in both", USER, reasoning_effort="low", defaults={"reasoning_effort": "high"})
chat("reasoning object", USER, reasoning={"effort": "medium"})
chat("reasoning enabled", USER, reasoning={"enabled": True})
chat("image", {"role": "user", "content": [IMAGE, *PARTS]})
chat("names and capitals", {"role": "System", "content": "S"}, USER)
chat("message tools", {"role": "system", "content": "S", "tools": [BARE]}, USER)
chat("billing header", {"role": "system", "content": "x-anthropic-billing-header: v=1; cch=2\nYou are terse."}, USER)
chat("billing header alone", {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: v=1"}, {"type": "text", "text": "B"}]}, USER)
chat("strings as parts", {"role": "user", "content": ["a", {"type": "text", "text": "b"}]})
chat("tool in user", USER, {"role": "assistant", "content": "x", "refusal": None, "audio": None, "function_call": None, "annotations": []}, USER)

for name, body, defaults in cases:
    print(json.dumps({"name": name, "body": body, "defaults": defaults}, ensure_ascii=False))
