/** Files that a proxy passes on while they arrive, and keeps nothing of. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import http from "node:http";
import type { Client, TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";

const mebibyte = 1024 * 1024;
/** The bytes that sockets and the proxy may hold between its two ends. */
const inFlightBytes = 48 * mebibyte;
const begin =
  '--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n/root/big\r\n' +
  '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n';

export interface Passing {
  client: Client;
  /** The proxy's. */
  url: string;
  sizeBytes: number;
  /** The bytes that the proxy has written to disks. */
  keptBytes(): number;
}

/** Up and down again. Each way the receiver has the first bytes before the last are sent. */
export async function passFile(passing: Passing): Promise<void> {
  await using capsule = await passing.client.capsule({ memory_mb: 256 });
  const sum = await upload(capsule, passing);
  await download(capsule, passing, sum);
  assert.ok(passing.keptBytes() < mebibyte, `the proxy has written ${passing.keptBytes()} bytes to disk`);
}

function requestTo(url: string, capsule: TestCapsule, verb: string, type: string): http.ClientRequest {
  const headers = { "x-api-key": capsule.client.key, "content-type": type };
  return http.request(`${url}${capsule.path}/files/stream/${verb}`, { method: "POST", headers, agent: false });
}

/** Sends the second half after the first is in the guest; resolves with the hash. */
async function upload(capsule: TestCapsule, { url, sizeBytes, keptBytes }: Passing): Promise<string> {
  const request = requestTo(url, capsule, "write", "multipart/form-data; boundary=b");
  using _ = { [Symbol.dispose]: () => void request.destroy() };
  const answered = once(request, "response");
  request.write(begin);
  const hash = createHash("sha256");
  const send = async (bytes: number) => {
    for (let sent = 0; sent < bytes; sent += mebibyte) {
      const chunk = Buffer.alloc(mebibyte, `${sent} of ${bytes}`);
      hash.update(chunk);
      if (!request.write(chunk)) await once(request, "drain");
    }
  };
  await send(sizeBytes / 2);
  await waitFor("half of it is in the guest", async () => {
    const held = Number(await capsule.sh("cat /root/.capsule-* | wc -c", { timeout: 0 }));
    return held >= sizeBytes / 2 - 2 * mebibyte;
  });
  assert.ok(keptBytes() < mebibyte, `the proxy has written ${keptBytes()} bytes to disk`);
  await send(sizeBytes / 2);
  request.end("\r\n--b--\r\n");
  const [{ statusCode }] = await answered;
  assert.equal(statusCode, 204);
  const sum = hash.digest("hex");
  assert.equal((await capsule.sh("sha256sum /root/big", { timeout: 0 })).split(" ")[0], sum);
  return sum;
}

/** Reads the first bytes, and nothing more until the guest has stopped reading the file before its end. */
async function download(capsule: TestCapsule, { url, sizeBytes, keptBytes }: Passing, sum: string): Promise<void> {
  const request = requestTo(url, capsule, "read", "application/json");
  using _ = { [Symbol.dispose]: () => void request.destroy() };
  request.end('{"path":"/root/big"}');
  const [answer] = (await once(request, "response")) as [http.IncomingMessage];
  assert.equal(answer.statusCode, 200);
  await once(answer, "readable");
  const offset = async () => {
    const script =
      "fd=$(ls -l /proc/1/fd | sed -n 's|.* \\([0-9]*\\) -> /root/big$|\\1|p'); sed -n 's/^pos:\\s*//p' /proc/1/fdinfo/$fd";
    return Number(await capsule.sh(script));
  };
  let before = -1;
  const stopped = await waitFor("the guest stops reading, since nobody takes more", async () => {
    const now = await offset();
    const isSame = now === before;
    before = now;
    return isSame && now > 0 ? now : undefined;
  });
  assert.ok(stopped <= inFlightBytes, `${stopped} bytes were read ahead`);
  assert.ok(keptBytes() < mebibyte, `the proxy has written ${keptBytes()} bytes to disk`);
  const hash = createHash("sha256");
  let bytes = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    hash.update(chunk);
    bytes += chunk.length;
  }
  assert.equal(bytes, sizeBytes);
  assert.equal(hash.digest("hex"), sum);
}
