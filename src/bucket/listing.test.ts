import assert from "node:assert/strict";
import { test } from "node:test";
import { namesOf } from "./listing.ts";

const list = (inner: string) =>
  `<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="x">${inner}</ListBucketResult>`;
const key = (name: string) => `<Contents><Key>${name}</Key><Size>1</Size></Contents>`;

test("the names of a list are found in their order, and whether there are more", () => {
  assert.deepEqual(namesOf(list(key("a/1") + key("a/2&amp;3")), 10), { names: ["a/1", "a/2&3"], isTruncated: false });
  assert.deepEqual(namesOf(list(`<IsTruncated>true</IsTruncated>${key("b")}`), 1), { names: ["b"], isTruncated: true });
  assert.deepEqual(namesOf(list(""), 1), { names: [], isTruncated: false });
});

test("what is no list is refused, and a list longer than was asked for", () => {
  for (const text of ["", "<html></html>", "<Error><Code>NoSuchKey</Code></Error>", `x${list("")}`])
    assert.throws(() => namesOf(text, 10), /it is no list/, text);
  assert.throws(() => namesOf(list(key("a").repeat(3)), 2), /more than 2 names/);
  assert.throws(() => namesOf(list("<Key>a"), 2), /a name in it has no end/);
  assert.throws(() => namesOf(list("<Key><Key>a</Key></Key>"), 2), /a name in it has no end/);
});

test("two megabytes of opened elements are read in one pass", () => {
  const opened = list("<a><Key>x</Key>".repeat(150_000));
  const began = performance.now();
  assert.throws(() => namesOf(opened, 1_000), /more than 1000 names/);
  assert.throws(() => namesOf(list(`${"<a>".repeat(700_000)}<Key>`), 1_000), /no end/);
  assert.ok(performance.now() - began < 10_000);
});
