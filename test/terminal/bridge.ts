/**
 * Connects its own terminal to a capsule's, like a command-line client: sends keys and window size, prints output. The
 * tests run it inside a terminal emulator.
 *
 *   node bridge.ts URL MESSAGE      MESSAGE: the first message, as JSON. $CAPSULE_API_KEY has the key.
 *
 * It writes the session's tag to the file $BRIDGE_TAG. At the end, the last line on the screen is the reason.
 */
import { writeFileSync } from "node:fs";
import { WebSocket } from "ws";

const queuedMaxBytes = 1 << 20;
const [url = "", first = "{}"] = process.argv.slice(2);
const { CAPSULE_API_KEY = "", BRIDGE_TAG } = process.env;
const { stdin, stdout } = process;

const socket = new WebSocket(url, { headers: { "x-api-key": CAPSULE_API_KEY }, perMessageDeflate: false });
const say = (message: object, left?: () => void) => socket.send(JSON.stringify(message), left);

socket.on("open", () => {
  const size = { cols: stdout.columns, rows: stdout.rows };
  say({ ...size, ...(JSON.parse(first) as object) });
});

socket.on("message", (text: Buffer) => {
  const message = JSON.parse(text.toString()) as { type: string; data: string; tag: string; exit_code: number };
  switch (message.type) {
    case "started":
      begin(message.tag);
      return;
    case "output":
      stdout.write(Buffer.from(message.data, "base64"));
      return;
    case "exit":
      stdout.write(`\r\nbridge: exit ${message.exit_code}\r\n`);
      return;
    case "error":
      stdout.write(`\r\nbridge: error: ${message.data}\r\n`);
  }
});

socket.on("error", (error) => stdout.write(`\r\nbridge: ${error.message}\r\n`));
socket.on("close", (code) => {
  stdout.write(`\r\nbridge: closed ${code}\r\n`);
  process.exit(0);
});

function begin(tag: string): void {
  stdin.setRawMode(true);
  if (BRIDGE_TAG !== undefined) writeFileSync(BRIDGE_TAG, tag);
  const resize = () => say({ type: "resize", cols: stdout.columns, rows: stdout.rows });
  stdout.on("resize", resize);
  resize();
  stdin.on("data", (keys: Buffer) => {
    say({ type: "input", data: keys.toString("base64") }, () => {
      if (socket.bufferedAmount < queuedMaxBytes) stdin.resume();
    });
    if (socket.bufferedAmount >= queuedMaxBytes) stdin.pause();
  });
}
