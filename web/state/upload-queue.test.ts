import assert from "node:assert/strict";
import { test } from "node:test";
import type { Chosen } from "./chosen-files.ts";
import { nameOf, UploadQueue, uploadsMax } from "./upload-queue.ts";

const files = (...paths: string[]): Chosen[] => paths.map((path) => ({ path, file: new File([path], path) }));

/** Files are sent by hand: `sending` has the one under way. */
function queue() {
  const uploads = new UploadQueue();
  const log: string[] = [];
  const sending: { path: string; done: () => void; fail: (error: Error) => void; share: (of: number) => void }[] = [];
  const handlers = {
    send: ({ path }: Chosen, signal: AbortSignal, share: (of: number) => void) =>
      new Promise<void>((done, fail) => {
        sending.push({ path, done, fail, share });
        signal.addEventListener("abort", () => fail(new Error("aborted")));
      }),
    onSent: (name: string) => void log.push(`sent ${name}`),
    onCancelled: (name: string) => void log.push(`cancelled ${name}`),
    onError: (error: unknown) => void log.push(`error ${(error as Error).message}`),
  };
  const add = (chosen: Promise<readonly Chosen[]>) => uploads.add(chosen, handlers);
  const names = () => uploads.shown.value.map(nameOf);
  return { uploads, log, sending, add, names };
}

/** Promises that are ready have run afterwards. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a second upload waits for the first, whichever is read first, and each file for the one before", async () => {
  const { uploads, log, sending, add, names } = queue();
  const slow = Promise.withResolvers<Chosen[]>();
  add(slow.promise);
  add(Promise.resolve(files("b/3", "b/4")));
  await settled();
  assert.deepEqual([sending.length, names()], [0, ["the dropped files", "b, 2 files"]]);
  slow.resolve(files("a/1", "a/2"));
  await settled();
  assert.deepEqual([sending.length, names()], [1, ["a/1", "b, 2 files"]]);
  sending[0]!.share(0.5);
  assert.deepEqual([uploads.shown.value[0]!.share, uploads.shown.value[0]!.number], [0.5, 1]);
  for (const index of [0, 1, 2, 3]) {
    assert.equal(sending.length, index + 1);
    sending[index]!.done();
    await settled();
  }
  assert.deepEqual(
    sending.map(({ path }) => path),
    ["a/1", "a/2", "b/3", "b/4"],
  );
  assert.deepEqual(log, ["sent 2 files", "sent 2 files"]);
  assert.deepEqual([names(), uploads.ended.value], [[], 2]);
});

test("an upload is cancelled while it waits, while it is read and while it is sent; the next one goes on", async () => {
  const { uploads, log, sending, add, names } = queue();
  add(Promise.resolve(files("first")));
  add(Promise.resolve(files("second")));
  add(new Promise(() => {}));
  add(Promise.resolve(files("fourth", "fifth")));
  await settled();
  uploads.shown.value[1]!.cancel();
  assert.deepEqual(names(), ["first", "the dropped files", "2 files"]);
  uploads.shown.value[0]!.cancel();
  await settled();
  assert.deepEqual(names(), ["the dropped files", "2 files"]);
  uploads.shown.value[0]!.cancel();
  await settled();
  assert.deepEqual(names(), ["fourth"]);
  sending.at(-1)!.done();
  await settled();
  sending.at(-1)!.fail(new Error("no space"));
  await settled();
  assert.deepEqual(log, [
    "cancelled second",
    "cancelled first",
    "cancelled the dropped files",
    "error no space",
    "sent 1 file",
  ]);
});

test("a drop that cannot be read is told at its turn, and so many uploads can wait", async () => {
  const { log, add, names } = queue();
  add(Promise.resolve(files("first")));
  add(Promise.reject(new Error("more than 10,000 files")));
  await settled();
  assert.deepEqual(log, []);
  for (let count = 2; count < uploadsMax; count++) add(Promise.resolve(files("more")));
  assert.throws(() => add(Promise.resolve(files("one too many"))), /At most 20 uploads can wait/);
  assert.equal(names().length, uploadsMax);
});
