/** The server's memory while clients send what it does not take, read from /proc. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import http from "node:http";
import type { Client } from "../client.ts";
import type { Server } from "../server.ts";

const gibibyte = 2 ** 30;
const growthMaxKb = 128 * 1024;
const gaugeMs = 100;

/** Throws when the server's resident memory grows by more than 128 MiB in the meantime. */
export async function withFlatMemory(server: Server, action: () => Promise<void>): Promise<void> {
  const residentKb = () => Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${server.pid}/status`, "utf8"))?.[1]);
  const beforeKb = residentKb();
  let mostKb = beforeKb;
  const gauge = setInterval(() => {
    mostKb = Math.max(mostKb, residentKb());
  }, gaugeMs);
  await action().finally(() => clearInterval(gauge));
  console.log(`the server's memory grew from ${beforeKb} to ${mostKb} KiB at most`);
  assert.ok(mostKb - beforeKb < growthMaxKb, `grew by ${mostKb - beforeKb} KiB`);
}

export interface Refused {
  path: string;
  key: string;
  type: string;
}

/**
 * Sends 1 GiB from this address as fast as it is taken, until the connection ends; resolves with the status of the answer,
 * if it was read.
 */
export async function pourGibibyte(
  url: string,
  { path, key, type }: Refused,
  localAddress: string,
): Promise<number | undefined> {
  const headers = { "x-api-key": key, "content-type": type, "content-length": gibibyte };
  const request = http.request(url + path, { method: "POST", headers, agent: false, localAddress });
  const chunk = Buffer.alloc(65_536);
  let status: number | undefined;
  const pour = () => {
    while (!request.destroyed && request.write(chunk));
  };
  request
    .on("drain", pour)
    .on("error", () => {}) // the reset, which is what is tested
    .on("response", (answer) => {
      status = answer.statusCode;
      answer.resume();
    });
  pour();
  await new Promise((resolve) => request.once("close", resolve));
  return status;
}

const head =
  '--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n/root/slow\r\n' +
  '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n';

/** A streamed write that goes on by a chunk each time its owner says so. */
export class SlowWrite {
  readonly #request: http.ClientRequest;
  readonly #answered: Promise<http.IncomingMessage[]>;
  readonly #hash = createHash("sha256");
  readonly #client: Client;
  readonly #at: string;

  constructor(client: Client, at: string) {
    this.#client = client;
    this.#at = at;
    const headers = { "x-api-key": client.key, "content-type": "multipart/form-data; boundary=b" };
    this.#request = http.request(`${client.url}${at}/files/stream/write`, { method: "POST", headers, agent: false });
    this.#answered = once(this.#request, "response");
    this.#request.write(head);
  }

  send(chunk: Buffer): void {
    this.#hash.update(chunk);
    this.#request.write(chunk);
  }

  /** Throws unless all of it is in the guest. */
  async end(): Promise<void> {
    this.#request.end("\r\n--b--\r\n");
    const [answer] = await this.#answered;
    assert.equal(answer?.statusCode, 204);
    const json = { cmd: "sha256sum", args: ["/root/slow"] };
    const { stdout } = (await this.#client.expect(200, "POST", `${this.#at}/exec`, { json })).json;
    assert.equal(stdout.split(" ")[0], this.#hash.digest("hex"));
  }
}
