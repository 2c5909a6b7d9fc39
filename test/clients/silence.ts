/** Connections on which nobody has anything to say, through a proxy that cuts off silent ones. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { WebSocket } from "ws";
import type { Client } from "../client.ts";

/** An exec stream, an attach, a terminal and the event feed: silent for so long, and then each says one thing more. */
export async function silentSockets(client: Client, url: string, silenceMs: number): Promise<void> {
  await using capsule = await client.capsule({ memory_mb: 256 });
  const at = `/v1/capsules/${capsule.id}`;
  const headers = { "X-API-Key": client.key };
  const json = { cmd: "sleep", args: ["1000000"], background: true };
  const { tag } = (await client.expect(202, "POST", `${at}/exec`, { json })).json;
  const feed = await fetch(`${url}/v1/events`, { headers });
  const events = feed.body!.getReader();

  const open = async (path: string, first?: object) => {
    const socket = new WebSocket(url.replace("http", "ws") + path, { headers });
    const types: string[] = [];
    socket.on("message", (data) => types.push(JSON.parse(String(data)).type));
    await once(socket, "open");
    if (first !== undefined) socket.send(JSON.stringify(first));
    return { socket, types };
  };
  const stream = await open(`${at}/exec/stream`, { type: "start", cmd: "sleep", args: ["1000000"] });
  const attach = await open(`${at}/processes/${tag}/stream`);
  const terminal = await open(`${at}/pty`, { type: "start", cmd: "sleep", args: ["1000000"] });
  const all = [stream, attach, terminal];
  await delay(silenceMs); // what is tested is that nothing happens in it
  for (const { socket } of all) assert.equal(socket.readyState, WebSocket.OPEN);

  const closed = all.map(({ socket }) => once(socket, "close"));
  stream.socket.send(JSON.stringify({ type: "stop" }));
  terminal.socket.send(JSON.stringify({ type: "kill" }));
  await client.expect(204, "DELETE", `${at}/processes/${tag}`);
  await Promise.all(closed);
  for (const { types } of all) assert.equal(types.at(-1), "exit");

  await client.expect(204, "DELETE", at);
  let told = "";
  while (!told.includes(`"${capsule.id}"`) || !told.includes("capsule-removed")) {
    const { done, value } = await events.read();
    assert.ok(!done, "the event feed was cut off");
    told += Buffer.from(value).toString();
  }
  await events.cancel();
}
