import assert from "node:assert/strict";
import { test } from "node:test";
import { checkPortToken, newPortSecret, signPortToken } from "./port-tokens.ts";

const secret = Buffer.alloc(32, 7);
const of = { id: "cl-one", port: 8_000, expiresAt: 2_000 };
const at = (now: number) => ({ id: of.id, port: of.port, now });

test("a token opens its port until it ends", () => {
  const token = signPortToken(secret, of);
  assert.match(token, /^[A-Za-z0-9._~-]+$/);
  assert.deepEqual(
    [0, 1_999, 2_000, 3_000].map((now) => checkPortToken(secret, token, at(now))),
    [2_000, 2_000, undefined, undefined],
  );
});

test("a token stays what it was: links outlive an upgrade of the service", () => {
  assert.equal(signPortToken(secret, of), "2000.U3em3MA42oiCK6WIjN1nmY2gGF6EWFsjpmugFjmYzvY");
});

test("a token opens no other port, capsule or time, and none under another secret", () => {
  const token = signPortToken(secret, of);
  assert.equal(checkPortToken(secret, token, { ...at(0), port: 800 }), undefined);
  assert.equal(checkPortToken(secret, token, { ...at(0), id: "cl-on" }), undefined);
  assert.equal(checkPortToken(newPortSecret(), token, at(0)), undefined);
  assert.equal(checkPortToken(secret, token.replace("2000.", "9000."), at(0)), undefined);
});

test("a token with one character changed, added or taken away opens nothing", () => {
  const token = signPortToken(secret, of);
  for (let index = 0; index < token.length; index++) {
    const [head, each, tail] = [token.slice(0, index), token[index], token.slice(index + 1)];
    const other = each === "A" ? "B" : "A";
    for (const changed of [`${head}${other}${tail}`, `${head}${tail}`, `${head}${each}${each}${tail}`])
      assert.equal(checkPortToken(secret, changed, at(0)), undefined, changed);
  }
});

test("odd tokens open nothing", () => {
  const signed = signPortToken(secret, of);
  const signature = signed.slice(signed.indexOf(".") + 1);
  const odd = [
    "",
    ".",
    "2000",
    "2000.",
    `.${signature}`,
    `02000.${signature}`,
    `2e3.${signature}`,
    ` ${signed}`,
    `${signed} `,
  ];
  const odder = [
    `${signed}\n`,
    `${signed}=`,
    `-1.${signature}`,
    `${"9".repeat(400)}.${signature}`,
    signed.repeat(1_000),
  ];
  for (const token of [...odd, ...odder, `2000.${"é".repeat(43)}`, `2000.${"\0".repeat(43)}`])
    assert.equal(checkPortToken(secret, token, at(0)), undefined, token.slice(0, 80));
});

test("each secret has 32 bytes of its own", () => {
  const [one, another] = [newPortSecret(), newPortSecret()];
  assert.deepEqual([one.length, another.length], [32, 32]);
  assert.notDeepEqual(one, another);
});
