import { once } from "node:events";
import { createReadStream, createWriteStream, openAsBlob } from "node:fs";
import type { Socket } from "node:net";
import { basename } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { Agent, buildConnector, FormData, fetch, request, WebSocket } from "undici";
import { apiKey, httpScenario, url } from "./scenario.ts";
import { socketScenario } from "./sockets.ts";

const headers = { "x-api-key": apiKey };
const jsonType = { "content-type": "application/json" };
/** By default undici gives up on an answer after five minutes. */
const unhurried = { headersTimeout: 0, bodyTimeout: 0 };

await httpScenario({
  async send(method, path, json, key = apiKey) {
    const answer = await request(url + path, {
      ...unhurried,
      method,
      headers: { "x-api-key": key, ...(json === undefined ? {} : jsonType) },
      ...(json === undefined ? {} : { body: JSON.stringify(json) }),
    });
    return { status: answer.statusCode, bytes: Buffer.from(await answer.body.arrayBuffer()) };
  },
  async sendText(path, text) {
    const answer = await fetch(url + path, { method: "POST", headers, body: text });
    return { status: answer.status, bytes: Buffer.from(await answer.arrayBuffer()) };
  },
  async upload(path, target, file, isFileFirst) {
    const form = new FormData();
    const content = await openAsBlob(file);
    if (!isFileFirst) form.set("path", target);
    form.set("file", content, basename(file));
    form.set("path", target);
    const answer = await fetch(url + path, { method: "POST", headers, body: form });
    await answer.arrayBuffer();
    return answer.status;
  },
  async download(path, target, file) {
    const body = JSON.stringify({ path: target });
    const answer = await request(url + path, {
      ...unhurried,
      method: "POST",
      headers: { ...headers, ...jsonType },
      body,
    });
    await pipeline(answer.body, createWriteStream(file));
    return answer.statusCode;
  },
  async abortExec(path, body) {
    const signal = AbortSignal.timeout(5_000);
    const options = {
      method: "POST",
      headers: { ...headers, ...jsonType },
      body: JSON.stringify(body),
      signal,
    } as const;
    await request(url + path, options).catch(() => {});
  },
  async abortUpload(path, target) {
    async function* half() {
      yield `--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n${target}\r\n`;
      yield '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n';
      for await (const chunk of createReadStream("/dev/zero", { end: 4 << 20 })) yield chunk;
      throw new Error("the client gives up");
    }
    const form = { "content-type": "multipart/form-data; boundary=b" };
    await request(url + path, { method: "POST", headers: { ...headers, ...form }, body: Readable.from(half()) }).catch(
      () => {},
    );
  },
  async abortDownload(path, target) {
    const body = JSON.stringify({ path: target });
    const answer = await request(url + path, { method: "POST", headers: { ...headers, ...jsonType }, body });
    answer.body.on("error", () => {}).destroy();
  },
});

/** Its WebSocket has no way to break a connection off, so the connection is made by a connector that keeps it. */
await socketScenario(async (target, onText) => {
  let connection: Socket | undefined;
  const connect = buildConnector({});
  const dispatcher = new Agent({
    connect: (options, callback) =>
      connect(options, (...[error, socket]) => {
        connection = socket ?? undefined;
        callback(...([error, socket] as Parameters<typeof callback>));
      }),
  });
  const socket = new WebSocket(target, { headers, dispatcher });
  socket.addEventListener("message", ({ data }) => onText(data));
  await once(socket, "open");
  return {
    send: (text) => socket.send(text),
    async close() {
      if (socket.readyState === socket.CLOSED) return;
      socket.close();
      await once(socket, "close");
    },
    abort: () => connection?.resetAndDestroy(),
  };
});
