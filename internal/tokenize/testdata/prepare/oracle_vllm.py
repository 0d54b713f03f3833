"""What vLLM makes of the cases: the variables its chat template gets. Run with the Python of an installed vLLM:

    python oracle_vllm.py < cases.jsonl > vllm.jsonl
"""

import copy
import json
import logging
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import jinja2.meta  # noqa: F401
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import hf
from vllm.renderers.params import merge_kwargs

try:
    from vllm.renderers import chat_utils
except ImportError:
    from vllm.entrypoints import chat_utils

logging.disable(logging.CRITICAL)

# All that a template may look at, so that no variable is kept from it.
ALL = "{{ messages, tools, documents, custom, other, enable_thinking, thinking, reasoning_effort, add_generation_prompt }}"
TEMPLATES = {
    "string": ALL + "{% for message in messages %}{{ message.content }}{% endfor %}",
    "parts": ALL + "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}",
    "developer": ALL + "{% for message in messages %}{% if message.role == 'developer' %}{{ message.content }}{% endif %}{% endfor %}",
}
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Model:  # what is asked of the configuration of a model without images
    enable_prompt_embeds = False
    multimodal_config = None
    allowed_local_media_path = None
    allowed_media_domains = None
    tokenizer_revision = revision = code_revision = None
    trust_remote_code = False
    model = tokenizer = "m"


class Tokenizer:  # notes what a template would get, as transformers' apply_chat_template hands it on
    name_or_path = "m"

    def get_chat_template(self, chat_template=None, tools=None):
        return chat_template

    def apply_chat_template(self, conversation, tools=None, documents=None, chat_template=None, add_generation_prompt=False,
                            continue_final_message=False, tokenize=True, return_dict=True, **kwargs):
        if continue_final_message:
            if add_generation_prompt:
                raise ValueError("both")
            last = conversation[-1]
            if isinstance(last["content"], list):
                next(p for p in reversed(last["content"]) if "text" in p)["text"] += TAG
            else:
                last["content"] += TAG
        return {"messages": conversation, "tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt, **kwargs}


def prepare(body: dict, defaults: dict, template: str) -> dict:
    r = ChatCompletionRequest.model_validate(copy.deepcopy(body))
    tools = None if r.tools is None else [t.model_dump() for t in r.tools]
    params = r.build_chat_params(template, "auto").with_defaults(merge_kwargs(defaults, {"tools": tools, "tokenize": False}))
    conversation, _, _ = chat_utils.parse_chat_messages(r.messages, Model(), hf._detect_content_format(template, default="string"))
    kw = params.get_apply_chat_template_kwargs()
    return hf.safe_apply_chat_template(Model(), Tokenizer(), conversation, **kw)


for line in sys.stdin:
    case = json.loads(line)
    out = {"name": case["name"]}
    for kind, template in TEMPLATES.items():
        try:
            out[kind] = prepare(case["body"], case["defaults"], template)
        except Exception as e:
            out[kind] = {"error": type(e).__name__}
    print(json.dumps(out, ensure_ascii=False))
