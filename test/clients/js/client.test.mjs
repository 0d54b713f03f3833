// The official JavaScript client against kvroute serve. The harness (clients_test.go) starts engines and routers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";

const { ROUTER, KEYED, KEY, FULL, DRAINED, DRAINED_PID, SCENE } = process.env;
const make = (base = ROUTER, more = {}) => new OpenAI({ baseURL: base + "/v1", apiKey: "none", maxRetries: 0, timeout: 30_000, ...more });
const client = make();
const hello = [
  { role: "system", content: "You are brief. ".repeat(20) },
  { role: "user", content: "Where is Zürich? 🏔" },
];
const weather = {
  type: "function",
  function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
};
const scene = (user, more = {}, options = {}) => client.chat.completions.create({ model: "scene", messages: hello, user, ...more }, options);
const seen = async () => (await fetch(SCENE + "/seen")).json();

async function eventually(what, f) {
  const end = Date.now() + 10_000;
  while (!(await f())) {
    assert.ok(Date.now() < end, what);
    await sleep(10);
  }
}

// fails holds an error to its class, status and code.
async function fails(kind, status, code, f) {
  await assert.rejects(f, (e) => {
    assert.ok(e instanceof kind, `${e.constructor.name}: ${e.message}`);
    assert.deepEqual([e.status, e.code], [status, code]);
    assert.ok(e.requestID, "the request's id");
    return true;
  });
}

async function drain(stream) {
  const chunks = [];
  for await (const c of stream) chunks.push(c);
  return chunks;
}

test("models", async () => {
  const models = [];
  for await (const m of client.models.list()) models.push(m);
  assert.deepEqual(models.map((m) => m.id).sort(), ["scene", "tiny"]);
  assert.deepEqual(models.find((m) => m.id === "scene").extra, { kept: true });
  assert.equal((await client.models.retrieve("tiny")).id, "tiny");
  await fails(OpenAI.NotFoundError, 404, "model_not_found", () => client.models.retrieve("gpt-9"));
});

test("chat, plain and streamed, is the same and cached", async () => {
  const ask = { model: "tiny", messages: [...hello, { role: "user", content: "In JavaScript?" }], max_tokens: 16 };
  const plain = await client.chat.completions.create(ask);
  assert.equal(plain.usage.completion_tokens, 16);
  const chunks = await drain(await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? "").join(""), plain.choices[0].message.content);
  const { usage, choices } = chunks.at(-1);
  assert.deepEqual(choices, []);
  assert.equal(usage.prompt_tokens, plain.usage.prompt_tokens);
  assert.ok(usage.prompt_tokens_details.cached_tokens > 0, "cached");
  const unasked = await drain(await client.chat.completions.create({ ...ask, stream: true }));
  assert.ok(unasked.every((c) => c.choices.length === 1 && !c.usage));
});

test("n", async () => {
  const got = await client.chat.completions.create({ model: "tiny", messages: hello, max_tokens: 4, n: 3 });
  assert.deepEqual(got.choices.map((c) => c.index), [0, 1, 2]);
});

test("headers", async () => {
  const { data, response } = await client.chat.completions
    .create({ model: "tiny", messages: hello, max_tokens: 2 }, { headers: { "X-Request-Id": "mine-18", "x-kvroute-explain": "1" } })
    .withResponse();
  assert.equal(data._request_id, "mine-18");
  assert.equal(response.headers.get("x-kvroute-basis"), "exact");
  assert.match(response.headers.get("x-kvroute-worker"), /^127\.0\.0\.1:/);
});

test("tools", async () => {
  const got = await scene("tools", { tools: [weather] });
  assert.deepEqual(got.choices[0].message.tool_calls.map((c) => JSON.parse(c.function.arguments)), [{ city: "Zürich" }, { city: "東京" }]);
  assert.deepEqual((await seen()).bodies.tools.tools, [weather]);
  const stream = client.chat.completions.stream({ model: "scene", messages: hello, user: "tools", tools: [weather] });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, '{"city": "Zürich"}');
  const { headers } = await seen();
  assert.ok(!("Authorization" in headers.tools), "credentials stay at the router");
});

test("completions", async () => {
  const got = await client.completions.create({ model: "tiny", prompt: ["one", "two"], max_tokens: 3, n: 2 });
  assert.deepEqual(got.choices.map((c) => c.index), [0, 1, 2, 3]);
  const ids = await client.completions.create({ model: "tiny", prompt: [5, 6, 7, 8], max_tokens: 2 });
  assert.equal(ids.usage.prompt_tokens, 4);
  const chunks = await drain(await client.completions.create({ model: "tiny", prompt: [5, 6, 7, 8], max_tokens: 2, stream: true }));
  assert.equal(chunks.map((c) => c.choices[0].text).join(""), ids.choices[0].text);
});

test("refusals", async () => {
  await fails(OpenAI.NotFoundError, 404, "model_not_found", () => client.chat.completions.create({ model: "gpt-9", messages: hello, stream: true }));
  await fails(OpenAI.NotFoundError, 404, "not_found", () => client.embeddings.create({ model: "tiny", input: "x" }));
  for (const body of ["", "{", "[]", "null", '{"model":"tiny"} x']) {
    const r = await fetch(ROUTER + "/v1/chat/completions", { method: "POST", body });
    assert.deepEqual([r.status, (await r.json()).error.code], [400, "invalid_json"], body);
  }
  await assert.rejects(scene("refused"), (e) => e instanceof OpenAI.BadRequestError && e.error.code === 400 && e.param === "top_k");
  await assert.rejects(scene("failing"), (e) => e instanceof OpenAI.InternalServerError && e.message.includes("EngineCore"));
});

test("streams that break", async () => {
  let got = "";
  await assert.rejects(
    async () => {
      for await (const c of await scene("cut", { stream: true })) got += c.choices[0].delta.content;
    },
    (e) => e instanceof OpenAI.APIError && e.code === "worker_failed" && e.type === "server_error",
  );
  assert.equal(got, "Half an ");
  await assert.rejects(scene("cut"), "an answer that was cut must not look whole");
  await assert.rejects(async () => drain(await scene("error in stream", { stream: true })), (e) => e instanceof OpenAI.APIError && e.error.message === "out of memory");
});

test("times", async () => {
  const before = (await seen()).aborted.never ?? 0;
  await assert.rejects(scene("never", {}, { timeout: 300 }), OpenAI.APIConnectionTimeoutError);
  await eventually("the engine is told", async () => (await seen()).aborted.never > before);
  await fails(OpenAI.InternalServerError, 504, "timeout", () => scene("never", {}, { headers: { "X-Request-Timeout": "300ms" } }));
});

test("aborts", async () => {
  const before = (await seen()).aborted.endless ?? 0;
  const stream = await scene("endless", { stream: true });
  let n = 0;
  for await (const c of stream) {
    assert.equal(c.choices[0].delta.content, "word ");
    if (++n === 3) stream.controller.abort();
  }
  assert.ok(n >= 3);
  await eventually("the engine is told", async () => (await seen()).aborted.endless > before);
  const stop = new AbortController();
  const call = scene("never", {}, { signal: stop.signal });
  setTimeout(() => stop.abort(), 100);
  await assert.rejects(call, OpenAI.APIUserAbortError);
});

test("keys", async () => {
  assert.ok((await make(KEYED, { apiKey: KEY }).models.list()).data.length);
  await fails(OpenAI.AuthenticationError, 401, "invalid_api_key", () => make(KEYED, { apiKey: KEY + "x" }).models.list());
  await fails(OpenAI.AuthenticationError, 401, "invalid_api_key", () => make(KEYED).chat.completions.create({ model: "tiny", messages: hello, stream: true }));
});

test("limits", async () => {
  const stream = await make(FULL).chat.completions.create({ model: "scene", messages: hello, user: "endless", stream: true });
  await assert.rejects(make(FULL).chat.completions.create({ model: "tiny", messages: hello }), (e) => {
    assert.ok(e instanceof OpenAI.RateLimitError);
    assert.deepEqual([e.code, e.headers.get("retry-after")], ["too_many_requests", "1"]);
    return true;
  });
  stream.controller.abort();
  const got = await make(FULL, { maxRetries: 5 }).chat.completions.create({ model: "tiny", messages: hello, max_tokens: 1 });
  assert.ok(got.choices.length);
});

// Last: the router ends.
test("drain", async () => {
  const stream = await make(DRAINED).chat.completions.create({ model: "scene", messages: hello, user: "while", stream: true });
  const chunks = [];
  for await (const c of stream) {
    if (chunks.push(c) === 1) {
      process.kill(Number(DRAINED_PID), "SIGTERM");
      await eventually("/ready turns", async () => (await fetch(DRAINED + "/ready")).status === 503);
    }
  }
  assert.deepEqual([chunks.length, chunks.at(-1).choices[0].finish_reason], [100 + 1, "stop"]);
  await assert.rejects(make(DRAINED).models.list(), OpenAI.APIConnectionError);
});
