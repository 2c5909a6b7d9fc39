import assert from "node:assert/strict";
import { test } from "node:test";
import { Random } from "../../test/conformance/random.ts";
import { bytesOfBase64 } from "./base64.ts";

const pattern = /^[A-Za-z0-9+/]*={0,2}$/;
/** "Ł" is two bytes in a string's memory, of which the lower one is the code of an A. */
const characters = [..."ABab09+/+/=", ..."=-_ \né", "Ł", "\ud800"];

test("what is decoded is base64 with its padding, and nothing else", (t) => {
  const random = new Random(t);
  for (let round = 0; round < 200_000; round++) {
    const of = characters.slice(0, random.below(2) === 0 ? 11 : characters.length);
    const text = Array.from({ length: random.below(13) }, () => of[random.below(of.length)]).join("");
    const isBase64 = text.length % 4 === 0 && pattern.test(text);
    const bytes = bytesOfBase64(text);
    assert.deepEqual(bytes, isBase64 ? Buffer.from(text, "base64") : undefined, JSON.stringify(text));
  }
});
