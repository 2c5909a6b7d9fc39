import assert from "node:assert/strict";
import { test } from "node:test";
import { admitTerminals, deleteTerminals, savedTerminals, saveTerminals } from "./saved-terminals.ts";

/** A Storage with a limit of characters. */
function storage(room = Number.POSITIVE_INFINITY): Storage {
  const kept: Record<string, string> = {};
  const methods = {
    getItem: (key: string) => kept[key] ?? null,
    setItem: (key: string, value: string) => {
      if (value.length > room) throw new DOMException("full", "QuotaExceededError");
      kept[key] = value;
    },
    removeItem: (key: string) => {
      delete kept[key];
    },
  };
  return new Proxy(methods as unknown as Storage, {
    ownKeys: () => Object.keys(kept),
    getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true }),
  });
}

const terminal = (number: number, screen = "") => ({ tag: `pty-${number}`, number, screen });

test("terminals are saved per capsule; an empty list deletes them", () => {
  const place = storage();
  saveTerminals("cl-a", [terminal(1, "$ ls"), terminal(2)], place);
  saveTerminals("cl-b", [terminal(3)], place);
  assert.deepEqual(savedTerminals("cl-a", place), [terminal(1, "$ ls"), terminal(2)]);
  saveTerminals("cl-a", [], place);
  assert.deepEqual(savedTerminals("cl-a", place), []);
  assert.deepEqual(savedTerminals("cl-b", place), [terminal(3)]);
});

test("screens beyond the limit are left out, sessions never", () => {
  const place = storage();
  saveTerminals("cl-a", [terminal(1, "x".repeat(900_000)), terminal(2, "y".repeat(900_000)), terminal(3, "z")], place);
  assert.deepEqual(
    savedTerminals("cl-a", place).map(({ tag, screen }) => [tag, screen.length]),
    [
      ["pty-1", 900_000],
      ["pty-2", 0],
      ["pty-3", 1],
    ],
  );
  const narrow = storage(100);
  saveTerminals("cl-a", [terminal(1, "x".repeat(200))], narrow);
  assert.deepEqual(savedTerminals("cl-a", narrow), [terminal(1)]);
});

test("unreadable entries are ignored", () => {
  for (const text of ["{", "null", "[1, null, {}]", '[{"tag":1,"number":1,"screen":""}]']) {
    const place = storage();
    place.setItem("terminals:cl-a", text);
    assert.deepEqual(savedTerminals("cl-a", place), [], text);
  }
});

test("signing out deletes all of them, and nothing else", () => {
  const place = storage();
  saveTerminals("cl-a", [terminal(1)], place);
  place.setItem("theme", "dark");
  deleteTerminals(place);
  assert.deepEqual(Object.keys(place), ["theme"]);
  saveTerminals("cl-a", [terminal(1)], place);
  assert.deepEqual(savedTerminals("cl-a", place), [], "a page that closes after the sign-out has saved its terminals");
  admitTerminals(place);
  saveTerminals("cl-a", [terminal(1)], place);
  assert.deepEqual(savedTerminals("cl-a", place), [terminal(1)]);
});
