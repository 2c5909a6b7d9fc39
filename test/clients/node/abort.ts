/**
 * Sends requests as they are told on standard input, METHOD PATH MILLISECONDS [JSON], and resets each one's connection so long
 * after it was sent. Writes the status of an answer that came before that, or 0.
 */
import { once } from "node:events";
import { connect } from "node:net";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { apiKey, url } from "./scenario.ts";

const { hostname, port } = new URL(url);

for await (const line of createInterface({ input: process.stdin })) {
  const [, method, path, milliseconds, json = ""] = /^(\S+) (\S+) (\d+) ?(.*)$/.exec(line)!;
  const socket = connect(Number(port), hostname);
  await once(socket, "connect");
  let answer = "";
  socket
    .on("error", () => {})
    .on("data", (chunk) => {
      answer += chunk;
    });
  const head = [`${method} ${path} HTTP/1.1`, "Host: x", `X-API-Key: ${apiKey}`, "Content-Type: application/json"];
  socket.write([...head, `Content-Length: ${Buffer.byteLength(json)}`, "", json].join("\r\n"));
  await delay(Number(milliseconds));
  socket.resetAndDestroy();
  console.log(answer.split(" ")[1] ?? 0);
}
