"""What SGLang makes of the cases: the variables its chat template gets. Run with the Python of an installed SGLang:

    python oracle_sglang.py < cases.jsonl > sglang.jsonl
"""

import copy
import json
import logging
import sys
import types

from sglang.srt.entrypoints.openai import serving_chat
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.parser.jinja_template_utils import detect_jinja_template_content_format

logging.disable(logging.CRITICAL)

TEMPLATES = {
    "string": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "parts": "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}",
}
Serving = serving_chat.OpenAIServingChat


class Tokenizer:  # notes what a template would get
    chat_template = None
    bos_token_id = None

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, tools=None, return_dict=True, documents=None, **kwargs):
        self.got = {"messages": messages, "tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt, **kwargs}
        return ""

    def encode(self, text, **_):
        self.prefix = text
        return []


class Missing:  # whatever else the server looks at is off
    def __getattr__(self, name):
        return None


def prepare(body: dict, defaults: dict, template: str) -> dict:
    tok = Tokenizer()
    s = Serving.__new__(Serving)
    off = ["is_minimax_m3", "is_gpt_oss", "is_gemma4", "chat_encoding_spec", "_encoding_adapter", "reasoning_parser", "tool_call_parser",
           "_reasoning_detector", "_prompt_text_round_trip_is_lossy", "_tokenizer_auto_adds_specials", "_chat_template_cache"]
    for name in off:
        try:
            setattr(s, name, None)
        except AttributeError:
            pass
    s.default_chat_template_kwargs = dict(defaults)
    s.tokenizer_manager = types.SimpleNamespace(tokenizer=tok, model_config=Missing(), served_model_name="m", server_args=Missing())
    s.template_manager = types.SimpleNamespace(
        jinja_template_content_format=detect_jinja_template_content_format(template), chat_template_name=None, python_chat_template=None,
        reasoning_config=None, jinja_template_may_reorder_tool_results=False, force_reasoning=False)
    s._encode_messages = lambda *a, **k: None
    s._takes_turn_grammar = lambda *a, **k: False
    s._requires_response_template_detokenization = lambda *a, **k: False
    s._patch_reasoning_skip_special_tokens = lambda *a, **k: None
    s._thinking_requested = lambda *a, **k: False
    r = ChatCompletionRequest.model_validate(copy.deepcopy(body))
    effort = r.chat_template_kwargs.pop("reasoning_effort", None) if r.chat_template_kwargs else None
    if effort is not None:  # as _convert_to_internal_request does before
        r.reasoning_effort = effort
    s._process_messages(r, False)
    if getattr(tok, "prefix", None) is not None:
        tok.got["PREFIX"] = tok.prefix
    return tok.got


for line in sys.stdin:
    case = json.loads(line)
    out = {"name": case["name"]}
    for kind, template in TEMPLATES.items():
        try:
            out[kind] = prepare(case["body"], case["defaults"], template)
        except Exception as e:
            out[kind] = {"error": type(e).__name__}
    print(json.dumps(out, ensure_ascii=False))
