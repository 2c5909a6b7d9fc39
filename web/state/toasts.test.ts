import assert from "node:assert/strict";
import { test } from "node:test";
import { Toasts } from "./toasts.ts";

test("an offer stays over changes of the page for 20 seconds, and goes with the first one after that", () => {
  const toasts = new Toasts();
  const texts = () => toasts.offers.value.map(({ text }) => text);
  const ran: string[] = [];
  const offer = (text: string, about: string) =>
    toasts.offer(text, { about, button: "Do it", run: () => ran.push(text) });
  offer("first of a", "a");
  offer("second of a", "a");
  offer("of b", "b");
  offer("of c", "c");
  assert.deepEqual(texts(), ["second of a", "of b", "of c"]);
  toasts.withdraw("c");
  toasts.offers.value[0]!.run();
  assert.deepEqual([texts(), ran], [["of b"], ["second of a"]]);
  const { since } = toasts.offers.value[0]!;
  toasts.turnPage(since + 19_999);
  assert.deepEqual(texts(), ["of b"]);
  toasts.turnPage(since + 20_000);
  assert.deepEqual(texts(), []);
});
