/** Heads on their way to a rule's host, and random first bytes of connections. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { inputs } from "../../test/relay/mutations.ts";
import { FirstBytes } from "./first-bytes.ts";
import { readFirstRequest, type Waiting } from "./first-request.ts";
import { answerHeaders, bodyOf, injectedHeaders, trailersOf } from "./inject-heads.ts";

const rule = { host: "api.example", headers: { "X-Key": "secret" } };
const head = (headers: string[], more = {}) => injectedHeaders(headers, { method: "GET", body: "none", rule, ...more });
const own = ["X-Key", "secret"];

describe("a request's headers", () => {
  const cases: [what: string, given: string[], sent: string[], more?: object][] = [
    [
      "the rule's host is the only one",
      ["Host", "API.example:80", "A", "1"],
      ["Host", "api.example", "A", "1", ...own],
    ],
    ["the rule's value is the only one", ["x-key", "a", "X-KEY", "b"], ["Host", "api.example", ...own]],
    ["hops stay behind", ["Connection", "close, B", "B", "1", "Keep-Alive", "5"], ["Host", "api.example", ...own]],
    ["Connection does not name the rule's", ["Connection", "X-Key, Host"], ["Host", "api.example", ...own]],
    [
      "an upgrade to HTTP/2 is not asked for",
      ["Upgrade", "h2c", "HTTP2-Settings", "a"],
      ["Host", "api.example", ...own],
    ],
    ["trailers are asked for", ["TE", "gzip, trailers"], ["Host", "api.example", ...own, "TE", "trailers"]],
    [
      "chunks are the only framing",
      ["Transfer-Encoding", "chunked", "Content-Length", "3"],
      ["Host", "api.example", ...own, "Transfer-Encoding", "chunked"],
      { body: "chunked" },
    ],
    [
      "a body's length stays",
      ["Content-Length", "3", "Trailer", "A"],
      ["Host", "api.example", "Content-Length", "3", ...own],
      { body: "length" },
    ],
    [
      "no body is told",
      ["A", "1"],
      ["Host", "api.example", "A", "1", ...own, "Content-Length", "0"],
      { method: "POST" },
    ],
  ];
  for (const [what, given, sent, more] of cases) test(what, () => assert.deepEqual(head(given, more), sent));

  test("a body is by length or in chunks", () => {
    assert.equal(bodyOf([]), "none");
    assert.equal(bodyOf(["Content-Length", "0"]), "length");
    assert.equal(bodyOf(["transfer-encoding", "Chunked"]), "chunked");
    for (const coding of [["gzip, chunked"], ["chunked", "chunked"], ["identity"]])
      assert.equal(bodyOf(coding.flatMap((each) => ["Transfer-Encoding", each])), undefined);
  });

  test("answers and trailers lose what frames them; a guest's trailers have no header of the rule", () => {
    assert.deepEqual(answerHeaders(["Connection", "X", "X", "1", "Set-Cookie", "a"]), ["Set-Cookie", "a"]);
    const trailers = ["X-Key", "mine", "Content-Length", "1", "Host", "b", "Connection", "x", "X-Sum", "1"];
    assert.deepEqual(trailersOf(trailers, rule), [["X-Sum", "1"]]);
    assert.deepEqual(
      trailersOf(trailers).map(([name]) => name),
      ["X-Key", "X-Sum"],
    );
  });
});

const seed = Number(process.env.CAPSULE_TEST_SEED ?? Math.floor(Math.random() * 2 ** 31));

/** Deterministic numbers from 0 to `below` - 1. */
function numbers(from: number): (below: number) => number {
  let state = from | 1;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return (state >>> 8) % below;
  };
}

test(`random heads that name a rule's host are read as its request or refused, seed ${seed}`, () => {
  const next = numbers(seed);
  const of = (...texts: string[]) => texts[next(texts.length)]!;
  const pieces = () =>
    of(
      "Host: api.example",
      "host:API.example",
      "Host : api.example",
      "X: 1",
      " folded",
      "Host: b.example",
      "",
      "\0",
      "Host:",
    );
  const lines = [["GET / HTTP/1.1"], ["POST http://api.example/ HTTP/1.1"], ["get / HTTP/1.0"], ["G\tT / HTTP/1.1"]];
  let decided = 0;
  for (let round = 0; round < inputs; round++) {
    const [first] = lines[next(lines.length)]!;
    const end = of("\r\n", "\r\n", "\r\n", "\n", "\r\r\n");
    const text = `${of("", "", "\r\n")}${[first, ...Array.from({ length: next(5) }, pieces)].join(end)}${of(end + end, end, "")}`;
    const bytes = new FirstBytes();
    const cut = next(text.length + 1);
    bytes.add(Buffer.from(text.slice(0, cut), "latin1"));
    const early = readFirstRequest(bytes, ["api.example"], "more");
    bytes.add(Buffer.from(text.slice(cut), "latin1"));
    const found =
      early.kind === "undecided"
        ? readFirstRequest(bytes, ["api.example"], of("more", "late", "ended") as Waiting)
        : early;
    if (found.kind !== "undecided") decided++;
    const seen = text.slice(0, early.kind === "undecided" ? text.length : cut).toLowerCase();
    const judged = found.kind === "foreign" ? seen.slice(0, found.headBytes) : seen;
    const mayBeItsHost = judged.includes("api.example") && /http\/1\.[01][\t ]*\r?\n/.test(judged);
    assert.ok(!(["other", "foreign"].includes(found.kind) && mayBeItsHost), JSON.stringify([text, cut]));
  }
  assert.ok(decided > inputs / 2);
});
