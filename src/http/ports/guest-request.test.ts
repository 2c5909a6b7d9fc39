/** Requests over connections that a server in the guest has reset. */
import assert from "node:assert/strict";
import { Duplex } from "node:stream";
import { test } from "node:test";
import { within } from "../../../test/wait-for.ts";
import { ConnectionReset } from "../../agent/dial.ts";
import { GuestRequest } from "./guest-request.ts";

function connection(): Duplex {
  const guest = new Duplex({ read() {}, write: (_chunk, _encoding, done) => done() });
  return guest.on("error", () => {});
}

async function refused(guest: Duplex): Promise<void> {
  const request = new GuestRequest(guest, { method: "POST", path: "/", headers: ["Host", "a"], onInformation() {} });
  request.message.end("body");
  const refusal = { code: "agent_error", message: /closed the connection without an answer|was reset/ };
  await assert.rejects(within("the refusal", request.answer), refusal);
}

test("a connection that was reset before the request is refused", async () => {
  const guest = connection();
  guest.destroy(new ConnectionReset());
  await within("the close", new Promise<void>((closed) => guest.once("close", closed)));
  await refused(guest);
});

test("a connection that is reset within the request is refused", async () => {
  const guest = connection();
  setImmediate(() => guest.destroy(new ConnectionReset()));
  await refused(guest);
});
