import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { TabHandover } from "./tab-handover.ts";

/** A tab that is signed in with a key, or not, and what it has heard. */
function tab(key?: string) {
  const heard: string[] = [];
  const news = new EventTarget();
  const hear = (text: string) => {
    heard.push(text);
    news.dispatchEvent(new Event("heard"));
  };
  const handover = new TabHandover({
    key: () => key,
    onKey: (key) => hear(`key ${key}`),
    onSignedOut: (keyId) => hear(`signed out of ${keyId}`),
  });
  return { handover, heard, next: () => once(news, "heard"), [Symbol.dispose]: () => handover.close() };
}

test("a tab that asks gets one key, of a tab that is signed in; no other tab gets any", async () => {
  using signedIn = tab("k1");
  using other = tab("k2");
  using signedOut = tab();
  using asking = tab();
  asking.handover.ask();
  await asking.next();
  // Messages of one channel arrive in order: all answers are there before this one.
  signedIn.handover.signedOut("key-1");
  await asking.next();
  assert.equal(asking.heard.filter((text) => text.startsWith("key ")).length, 1);
  assert.match(asking.heard[0]!, /^key k[12]$/);
  for (const { heard } of [other, signedOut]) assert.ok(heard.every((text) => text === "signed out of key-1"));
});

test("a tab that no longer asks takes no key, and unknown messages are ignored", async () => {
  using signedIn = tab("k1");
  using asking = tab();
  asking.handover.ask();
  asking.handover.stopAsking();
  const channel = new BroadcastChannel("session");
  for (const data of [null, 7, "key", {}, { type: "key" }, { type: "key", key: 1 }, { type: "signed-out" }])
    channel.postMessage(data);
  channel.postMessage({ type: "signed-out", keyId: "key-9" });
  await asking.next();
  channel.close();
  signedIn.handover.signedOut("key-1");
  await asking.next();
  assert.deepEqual(asking.heard, ["signed out of key-9", "signed out of key-1"]);
});
