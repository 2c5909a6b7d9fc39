/** Requests to web servers in capsules, against the real HTTP layer. */
import assert from "node:assert/strict";
import { createServer, type IncomingMessage } from "node:http";
import { after, before, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { PortUrls } from "../../test/port-urls.ts";
import { Client } from "./client.ts";

const api = new Api();
const urls = new PortUrls(api);
const seen: {
  method: string | undefined;
  url: string | undefined;
  headers: IncomingMessage["headers"];
  body: string;
}[] = [];
let client: Client;
let id = "";

before(async () => {
  await urls.listen();
  client = new Client({ url: `http://127.0.0.1:${urls.port}`, apiKey: keys.red, retries: 0 });
  id = await api.capsule();
  const inside = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    seen.push({ method: request.method, url: request.url, headers: request.headers, body });
    if (request.url === "/none") response.writeHead(204).end();
    else if (request.url === "/moved") response.writeHead(302, { location: "/" }).end();
    else response.writeHead(201, { "x-a": ["1", "2"] }).end(`got ${body}`);
  });
  api.agent(id).servers.set(80, (connection) => inside.emit("connection", connection));
});
after(() => urls.close());

test("it reaches the server by the Host of its URL, with any method, headers and body", async () => {
  const capsule = client.capsule(id);
  const first = await capsule.fetch(80, "/a?b=%20", { headers: { "X-B": "1" } });
  assert.deepEqual([first.status, first.headers.get("x-a"), await first.text()], [201, "1, 2", "got "]);
  const bodies = ["text", new TextEncoder().encode("text"), new Blob(["text"]), new Blob(["text"]).stream()];
  for (const body of bodies)
    assert.equal(await (await capsule.fetch(80, "p", { method: "POST", body })).text(), "got text");
  const [got, ...posts] = seen;
  assert.deepEqual([got?.method, got?.url, got?.headers["x-b"]], ["GET", "/a?b=%20", "1"]);
  assert.match(String(got?.headers.host), new RegExp(`^80-${id}\\.localhost(:[0-9]+)?$`));
  assert.equal(got?.headers["x-api-key"], undefined);
  const lengths = posts.map(({ headers }) => headers["content-length"]);
  assert.deepEqual(lengths, ["4", "4", "4", undefined]);
});

test("it resolves with any status and no redirect is followed", async () => {
  const capsule = client.capsule(id);
  const empty = await capsule.fetch(80, "/none");
  assert.deepEqual([empty.status, empty.body], [204, null]);
  assert.equal((await capsule.fetch(80, "/moved")).status, 302);
  const closed = await capsule.fetch(81);
  assert.deepEqual(
    [closed.status, ((await closed.json()) as { error: { code: string } }).error.code],
    [502, "port_closed"],
  );
});

test("a signal ends it, and a service that is away is told as such", async () => {
  await assert.rejects(client.capsule(id).fetch(80, "/", { signal: AbortSignal.abort(new Error("enough")) }), /enough/);
  const capsule = await client.connect(id);
  api.agent(id).servers.set(82, () => {});
  const controller = new AbortController();
  const hanging = capsule.fetch(82, "/", { signal: controller.signal });
  setImmediate(() => controller.abort(new Error("enough")));
  await assert.rejects(hanging, /enough/);
});

test("a fetch of the client's own is given the URL", async () => {
  const asked: string[] = [];
  const fetch: typeof globalThis.fetch = async (input, init) => {
    if (!(input instanceof Request)) return globalThis.fetch(input, init);
    asked.push(input.url, String(input.headers.get("x-api-key")));
    return new Response("own");
  };
  const own = new Client({ url: client.url, apiKey: keys.red, fetch });
  assert.equal(await (await own.capsule(id).fetch(80, "/x")).text(), "own");
  const [url = "", key] = asked;
  assert.equal(new URL(url).pathname, "/x");
  assert.equal(key, keys.red);
});
