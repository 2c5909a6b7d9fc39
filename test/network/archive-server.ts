/**
 * Serves what archives.ts has made, by the first label of the request's host: files, and git by its own server. Beside that, events and the
 * echo of a WebSocket.
 */
import { spawn } from "node:child_process";
import { createReadStream, statSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { join, normalize } from "node:path";
import { WebSocketServer } from "ws";

/** A server that gets its connections by `emit("connection", socket)`. */
export function archiveServer(folder: string): Server {
  const answer = (request: IncomingMessage, response: ServerResponse) => {
    const [label = ""] = (request.headers.host ?? "").split(".");
    const { pathname, search } = new URL(request.url!, "http://archives");
    if (label === "git") answerGit(join(folder, "git"), request, response, pathname, search.slice(1));
    else if (label === "events") answerEvents(response, pathname);
    else answerFile(join(folder, label), request, response, decodeURIComponent(pathname));
  };
  const sockets = new WebSocketServer({ noServer: true });
  return createServer(answer).on("upgrade", (request, socket, head) => {
    sockets.handleUpgrade(request, socket, head, (webSocket) => {
      webSocket.on("message", (data, isBinary) => webSocket.send(data, { binary: isBinary }));
    });
  });
}

function answerFile(folder: string, request: IncomingMessage, response: ServerResponse, path: string): void {
  let file = join(folder, normalize(path));
  try {
    if (statSync(file).isDirectory()) file = join(file, "index.html");
    const { size } = statSync(file);
    const first = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? "")?.[1] ?? 0);
    const range = first > 0 ? { "content-range": `bytes ${first}-${size - 1}/${size}` } : {};
    const type = file.endsWith(".html") ? "text/html" : "application/octet-stream";
    response.writeHead(first > 0 ? 206 : 200, { "content-type": type, "content-length": size - first, ...range });
    if (request.method === "HEAD") response.end();
    else
      createReadStream(file, { start: first })
        .on("error", () => response.destroy())
        .pipe(response);
  } catch {
    response.writeHead(404).end();
  }
}

/** `git http-backend` is a CGI program. */
function answerGit(
  folder: string,
  request: IncomingMessage,
  response: ServerResponse,
  path: string,
  query: string,
): void {
  const { headers } = request;
  const env = {
    PATH: process.env.PATH,
    GIT_PROJECT_ROOT: folder,
    GIT_HTTP_EXPORT_ALL: "1",
    GIT_CONFIG_COUNT: "1",
    GIT_CONFIG_KEY_0: "safe.directory",
    GIT_CONFIG_VALUE_0: "*",
    GIT_PROTOCOL: String(headers["git-protocol"] ?? ""),
    PATH_INFO: path,
    QUERY_STRING: query,
    REQUEST_METHOD: request.method,
    REMOTE_USER: "pusher",
    REMOTE_ADDR: request.socket.remoteAddress,
    CONTENT_TYPE: headers["content-type"] ?? "",
    HTTP_CONTENT_ENCODING: headers["content-encoding"] ?? "",
    ...(headers["content-length"] !== undefined && { CONTENT_LENGTH: headers["content-length"] }),
  };
  const backend = spawn("git", ["http-backend"], { env, stdio: ["pipe", "pipe", "inherit"] });
  request.pipe(backend.stdin).on("error", () => {}); // it may end before the request does
  response.on("close", () => backend.kill());
  let head = Buffer.alloc(0);
  const readHead = (chunk: Buffer) => {
    head = Buffer.concat([head, chunk]);
    const end = head.indexOf("\r\n\r\n");
    if (end === -1) return;
    backend.stdout.off("data", readHead);
    const fields = head.toString("latin1", 0, end).split("\r\n");
    for (const [name = "", value = ""] of fields.map((field) => field.split(/: */, 2))) {
      if (name === "Status") response.statusCode = Number.parseInt(value, 10);
      else response.setHeader(name, value);
    }
    response.write(head.subarray(end + 4));
    backend.stdout.pipe(response);
  };
  backend.stdout.on("data", readHead);
}

const waiting = new Map<string, () => void>();

/** `/NAME`: events, of which each but the first comes once `/NAME/seen` was asked for. */
function answerEvents(response: ServerResponse, path: string): void {
  const [, name = "", seen] = path.split("/");
  if (seen !== undefined) {
    waiting.get(name)?.();
    response.end();
    return;
  }
  response.writeHead(200, { "content-type": "text/event-stream" });
  let count = 0;
  const send = () => {
    response.write(`data: ${++count}\n\n`);
    if (count < 3) return;
    waiting.delete(name);
    response.end();
  };
  waiting.set(name, send);
  send();
}
