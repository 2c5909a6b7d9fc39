import { createReadStream, createWriteStream } from "node:fs";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import axios from "axios";
import { apiKey, httpScenario, url } from "./scenario.ts";

const api = axios.create({
  baseURL: url,
  headers: { "X-API-Key": apiKey },
  validateStatus: () => true,
  maxBodyLength: Number.POSITIVE_INFINITY,
  maxRedirects: 0, // or axios keeps the whole body, to be able to send it again
});

await httpScenario({
  async send(method, path, json, key = apiKey) {
    const headers = { "X-API-Key": key };
    const { status, data } = await api.request({ method, url: path, data: json, headers, responseType: "arraybuffer" });
    return { status, bytes: Buffer.from(data) };
  },
  async sendText(path, text) {
    const headers = { "Content-Type": "text/plain" };
    const { status, data } = await api.post(path, text, { headers, responseType: "arraybuffer" });
    return { status, bytes: Buffer.from(data) };
  },
  async upload(path, target, file, isFileFirst) {
    const content = { file: createReadStream(file) };
    const { status } = await api.postForm(
      path,
      isFileFirst ? { ...content, path: target } : { path: target, ...content },
    );
    return status;
  },
  async download(path, target, file) {
    const { status, data } = await api.post(path, { path: target }, { responseType: "stream" });
    await pipeline(data, createWriteStream(file));
    return status;
  },
  async abortExec(path, body) {
    await api.post(path, body, { signal: AbortSignal.timeout(5_000) }).catch(() => {});
  },
  async abortUpload(path, target) {
    async function* half() {
      yield `--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n${target}\r\n`;
      yield '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n';
      yield Buffer.alloc(4 << 20);
      await new Promise(() => {});
    }
    const signal = AbortSignal.timeout(5_000);
    const headers = { "Content-Type": "multipart/form-data; boundary=b" };
    await api.post(path, Readable.from(half()), { headers, signal }).catch(() => {});
  },
  async abortDownload(path, target) {
    const { data } = await api.post(path, { path: target }, { responseType: "stream" });
    data.destroy();
  },
});
