import assert from "node:assert/strict";
import { test } from "node:test";
import { editRefusal, resolved } from "./guest-files.ts";

test("a typed path is seen from the folder that is shown", () => {
  assert.equal(resolved("/root", "a b/c"), "/root/a b/c");
  assert.equal(resolved("/root", "../etc/"), "/etc");
  assert.equal(resolved("/root", "/var//log/./x"), "/var/log/x");
  assert.equal(resolved("/", "../.."), "/");
});

test("a file is edited only if nothing that is not seen would change", () => {
  const refusal = (text: string, isCut = false) => editRefusal({ bytes: new TextEncoder().encode(text), isCut });
  assert.equal(refusal("one\ntwo\n"), undefined);
  assert.equal(refusal(""), undefined);
  assert.match(refusal("one\r\ntwo")!, /line ends/);
  assert.match(refusal("\uFEFFone")!, /byte order mark/);
  assert.match(refusal("one", true)!, /too large/);
  assert.match(editRefusal({ bytes: new Uint8Array([0, 1]), isCut: false })!, /Only text/);
  assert.match(editRefusal({ bytes: new Uint8Array([0xff, 0xfe]), isCut: false })!, /Only text/);
});
