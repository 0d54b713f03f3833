"""The official Python client against kvroute serve. The harness (clients_test.go) starts engines and routers."""

import asyncio
import json
import os
import signal
import time
import unittest
import urllib.error
import urllib.request

import openai
from openai import AsyncOpenAI, OpenAI

ROUTER, KEYED, FULL, DRAINED, SCENE = (os.environ[n] for n in ("ROUTER", "KEYED", "FULL", "DRAINED", "SCENE"))
KEY = os.environ["KEY"]
HELLO = [{"role": "system", "content": "You are brief. " * 20}, {"role": "user", "content": "Where is Zürich? 🏔"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def client(base=ROUTER, **kw):
    kw = {"api_key": "none", "max_retries": 0, "timeout": 30} | kw
    return OpenAI(base_url=base + "/v1", **kw)


def get(url):
    try:
        with urllib.request.urlopen(url) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


def seen():
    return json.loads(get(SCENE + "/seen")[1])


class Case(unittest.TestCase):
    def setUp(self):
        self.client = client()
        self.addCleanup(self.client.close)

    def scene(self, name, **kw):
        kw = {"model": "scene", "messages": HELLO, "user": name} | kw
        return self.client.chat.completions.create(**kw)

    def eventually(self, what, f):
        end = time.monotonic() + 10
        while not f():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)


class Models(Case):
    def test_list(self):
        models = {m.id: m for m in self.client.models.list()}
        self.assertEqual(sorted(models), ["scene", "tiny"])
        # What the worker said is there, fields this client does not know too.
        self.assertEqual(models["scene"].model_extra, {"max_model_len": 4096, "extra": {"kept": True}})
        self.assertEqual(models["scene"].owned_by, "stage")

    def test_retrieve(self):
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")
        with self.assertRaises(openai.NotFoundError) as e:
            self.client.models.retrieve("gpt-9")
        self.assertEqual((e.exception.code, e.exception.param), ("model_not_found", "model"))


class Chat(Case):
    def test_plain_and_cached(self):
        messages = HELLO + [{"role": "user", "content": "And plainly?"}]
        first, second = (
            self.client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=12) for _ in range(2)
        )
        self.assertTrue(first.choices[0].message.content)
        self.assertEqual(first.choices[0].message.content, second.choices[0].message.content)
        self.assertEqual(first.usage.completion_tokens, 12)
        # The second went where the first is cached.
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 0)

    def test_stream_equals_plain(self):
        kw = {"model": "tiny", "messages": HELLO, "max_tokens": 24}
        plain = self.client.chat.completions.create(**kw)
        chunks = list(self.client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **kw))
        content = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(content, plain.choices[0].message.content)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "length")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.prompt_tokens, plain.usage.prompt_tokens)
        self.assertEqual(chunks[-1].usage.completion_tokens, 24)
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_no_usage_unless_asked(self):
        chunks = list(self.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4, stream=True))
        self.assertTrue(all(c.usage is None and c.choices for c in chunks))

    def test_n(self):
        got = self.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=6, n=3)
        self.assertEqual([c.index for c in got.choices], [0, 1, 2])
        seen = set()
        for chunk in self.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=6, n=3, stream=True):
            seen.update(c.index for c in chunk.choices)
        self.assertEqual(seen, {0, 1, 2})

    def test_parts(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
        got = self.client.chat.completions.create(model="tiny", messages=parts, max_tokens=3)
        self.assertEqual(got.usage.completion_tokens, 3)

    def test_headers(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model="tiny", messages=HELLO, max_tokens=3, extra_headers={"X-Request-Id": "mine-17", "x-kvroute-explain": "1"}
        )
        self.assertEqual(raw.parse()._request_id, "mine-17")
        self.assertIn("127.0.0.1:", raw.headers["x-kvroute-worker"])
        self.assertEqual(raw.headers["x-kvroute-basis"], "exact")
        self.assertGreater(int(raw.headers["x-kvroute-blocks"]), 3)

    def test_bytes_reach_the_engine(self):
        self.client.chat.completions.create(
            model="scene", user="tools", messages=HELLO, tools=[WEATHER], tool_choice="auto", parallel_tool_calls=True,
            temperature=0.1 + 0.2, seed=2**62, extra_body={"top_k": 40, "chat_template_kwargs": {"enable_thinking": False}},
        )  # fmt: skip
        told = seen()
        body = told["bodies"]["tools"]
        self.assertEqual(body["tools"], [WEATHER])
        self.assertEqual((body["temperature"], body["seed"], body["top_k"]), (0.1 + 0.2, 2**62, 40))
        self.assertEqual(body["messages"], HELLO)
        # Credentials and the client's description stay at the router.
        self.assertNotIn("Authorization", told["headers"]["tools"])
        self.assertFalse([h for h in told["headers"]["tools"] if h.startswith("X-Stainless")])

    def test_async(self):
        async def many():
            async with AsyncOpenAI(base_url=ROUTER + "/v1", api_key="none", max_retries=0, timeout=60) as c:

                async def one(i):
                    content = ""
                    stream = await c.chat.completions.create(
                        model="tiny", messages=HELLO + [{"role": "user", "content": f"number {i % 4}"}], max_tokens=8, stream=True
                    )
                    async for chunk in stream:
                        content += chunk.choices[0].delta.content or ""
                    return content

                return await asyncio.gather(*(one(i) for i in range(32)))

        got = asyncio.run(many())
        self.assertEqual([got[i] for i in range(32)], [got[i % 4] for i in range(32)])
        self.assertEqual(len(set(got)), 4)


class Tools(Case):
    def test_calls(self):
        got = self.scene("tools", tools=[WEATHER])
        calls = got.choices[0].message.tool_calls
        self.assertEqual([json.loads(c.function.arguments) for c in calls], [{"city": "Zürich"}, {"city": "東京"}])
        self.assertEqual(got.choices[0].finish_reason, "tool_calls")

    def test_streamed_calls(self):
        with self.client.chat.completions.stream(model="scene", messages=HELLO, user="tools", tools=[WEATHER]) as stream:
            final = stream.get_final_completion()
        call = final.choices[0].message.tool_calls[0]
        self.assertEqual((call.id, call.function.name, call.function.arguments), ("call_1", "weather", '{"city": "Zürich"}'))

    def test_results(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
        messages = HELLO + [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "7 °C"},
        ]
        raw = self.client.chat.completions.with_raw_response.create(
            model="tiny", messages=messages, tools=[WEATHER], max_tokens=4, extra_headers={"x-kvroute-explain": "1"}
        )
        self.assertEqual(raw.headers["x-kvroute-basis"], "exact")
        self.assertTrue(raw.parse().choices[0].message.content)


class Completions(Case):
    def test_text(self):
        got = self.client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=5)
        self.assertEqual(got.usage.completion_tokens, 5)
        stream = self.client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=5, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in stream if c.choices), got.choices[0].text)

    def test_ids_and_batches(self):
        got = self.client.completions.create(model="tiny", prompt=[5, 6, 7, 8], max_tokens=2)
        self.assertEqual(got.usage.prompt_tokens, 4)
        for prompt in (["one", "two", "three"], [[5, 6], [7, 8], [9]]):
            got = self.client.completions.create(model="tiny", prompt=prompt, max_tokens=2, n=2)
            self.assertEqual([c.index for c in got.choices], [0, 1, 2, 3, 4, 5])


class Errors(Case):
    def fails(self, kind, status, code, f):
        with self.assertRaises(kind) as e:
            f()
        self.assertEqual((e.exception.status_code, e.exception.code), (status, code))
        self.assertTrue(e.exception.request_id)
        return e.exception

    def test_unknown_model(self):
        for create in (
            lambda: self.client.chat.completions.create(model="gpt-9", messages=HELLO),
            lambda: self.client.chat.completions.create(model="gpt-9", messages=HELLO, stream=True),
            lambda: self.client.completions.create(model="gpt-9", prompt="x"),
        ):
            e = self.fails(openai.NotFoundError, 404, "model_not_found", create)
            self.assertEqual((e.param, e.type), ("model", "invalid_request_error"))
            self.assertIn("gpt-9", e.message)

    def test_unknown_paths(self):
        self.fails(openai.NotFoundError, 404, "not_found", lambda: self.client.embeddings.create(model="tiny", input="x"))
        self.fails(openai.NotFoundError, 404, "not_found", lambda: self.client.responses.create(model="tiny", input="x"))

    def test_bad_bodies(self):
        post = lambda content: self.client.post(  # noqa: E731
            "/chat/completions", cast_to=object, content=content, options={"headers": {"Content-Type": "application/json"}}
        )
        for body in (b"", b"{", b"[]", b"null", b'{"model":"tiny"} x', b'{"model":}', b"\xff\xfe"):
            self.fails(openai.BadRequestError, 400, "invalid_json", lambda: post(body))

    def test_engines_refusal(self):
        # The engine's own body: its code is a number, its type its own.
        with self.assertRaises(openai.BadRequestError) as e:
            self.scene("refused")
        self.assertEqual(e.exception.body["type"], "BadRequestError")
        self.assertEqual(e.exception.body["param"], "top_k")
        self.assertEqual(e.exception.body["code"], 400)

    def test_engine_fails(self):
        with self.assertRaises(openai.InternalServerError) as e:
            self.scene("failing")
        self.assertEqual(e.exception.status_code, 500)
        self.assertIn("EngineCore", e.exception.message)

    def test_stream_cut(self):
        got = ""
        with self.assertRaises(openai.APIError) as e:
            for chunk in self.scene("cut", stream=True):
                got += chunk.choices[0].delta.content
        self.assertEqual(got, "Half an ")
        self.assertEqual((e.exception.code, e.exception.type), ("worker_failed", "server_error"))
        with self.assertRaises(openai.APIConnectionError):
            self.scene("cut")

    def test_error_in_stream(self):
        with self.assertRaises(openai.APIError) as e:
            list(self.scene("error in stream", stream=True))
        self.assertEqual(e.exception.message, "out of memory")

    def test_failover(self):
        for i in range(2):
            # One of the two fails for a while; nobody sees it.
            req = urllib.request.Request(os.environ[f"ENGINE{i}"] + "/fault", b'{"errors":{"status":500,"count":2}}', {"Content-Type": "application/json"})
            urllib.request.urlopen(req).close()
        try:
            for i in range(2):
                # Both may fail once for a request: then there are the client's own retries.
                got = client(max_retries=4).chat.completions.create(model="tiny", messages=HELLO, max_tokens=2)
                self.assertEqual(got.usage.completion_tokens, 2)
        finally:
            for i in range(2):
                req = urllib.request.Request(os.environ[f"ENGINE{i}"] + "/fault", b'{"clear":true}', {"Content-Type": "application/json"})
                urllib.request.urlopen(req).close()


class Times(Case):
    def test_client_gives_up(self):
        before = seen()["aborted"].get("never", 0)
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.3).chat.completions.create(model="scene", messages=HELLO, user="never")
        self.eventually("the engine is told", lambda: seen()["aborted"].get("never", 0) > before)

    def test_limit_of_the_request(self):
        with self.assertRaises(openai.APIStatusError) as e:
            self.scene("never", extra_headers={"X-Request-Timeout": "300ms"})
        self.assertEqual((e.exception.status_code, e.exception.code), (504, "timeout"))
        with self.assertRaises(openai.APIError) as e:
            for _ in self.scene("endless", stream=True, extra_headers={"X-Request-Timeout": "0.3"}):
                pass
        self.assertEqual(e.exception.code, "timeout")

    def test_abort(self):
        before = seen()["aborted"].get("endless", 0)
        stream = self.scene("endless", stream=True)
        for _, chunk in zip(range(3), stream):
            self.assertEqual(chunk.choices[0].delta.content, "word ")
        stream.close()
        self.eventually("the engine is told", lambda: seen()["aborted"].get("endless", 0) > before)


class Keys(Case):
    def test_keys(self):
        good = client(KEYED, api_key=KEY)
        self.assertTrue(good.models.list().data)
        self.assertTrue(good.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1).choices)
        bad = client(KEYED, api_key=KEY[:-1])
        for call in (
            bad.models.list,
            lambda: bad.chat.completions.create(model="tiny", messages=HELLO),
            lambda: bad.completions.create(model="tiny", prompt="x", stream=True),
        ):
            with self.assertRaises(openai.AuthenticationError) as e:
                call()
            self.assertEqual(e.exception.code, "invalid_api_key")


class Limits(Case):
    def test_limit(self):
        self.client = client(FULL)
        with self.scene("endless", stream=True) as stream:
            next(iter(stream))
            with self.assertRaises(openai.RateLimitError) as e:
                self.client.chat.completions.create(model="tiny", messages=HELLO)
            self.assertEqual((e.exception.code, e.exception.response.headers["retry-after"]), ("too_many_requests", "1"))
        # The client's own retries find the place that came free.
        got = client(FULL, max_retries=5).chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)
        self.assertTrue(got.choices)


class ZDrain(Case):  # last: the router ends
    def test_drain(self):
        self.client = client(DRAINED)
        stream = iter(self.scene("while", stream=True))
        next(stream)
        os.kill(int(os.environ["DRAINED_PID"]), signal.SIGTERM)
        self.eventually("/ready turns", lambda: get(DRAINED + "/ready")[0] == 503)
        # Requests that come before the listener closes are answered.
        self.assertTrue(self.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1).choices)
        chunks = list(stream)
        self.assertEqual((len(chunks), chunks[-1].choices[0].finish_reason), (100, "stop"))
        with self.assertRaises(openai.APIConnectionError):
            client(DRAINED).models.list()


if __name__ == "__main__":
    unittest.main()
