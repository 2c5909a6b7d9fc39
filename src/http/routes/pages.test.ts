import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Api } from "../../../test/api.ts";

describe("the dashboard's files", () => {
  let root: string;
  let api: Api;
  const get = (path: string, headers: Record<string, string> = {}) => api.call("GET", path, { key: null, headers });

  before(async () => {
    root = await mkdtemp(join(tmpdir(), "capsule-web-"));
    const web = join(root, "web");
    await mkdir(join(web, "assets"), { recursive: true });
    await writeFile(join(web, "index.html"), "<p>dashboard</p>");
    await writeFile(join(web, "icon.svg"), "<svg/>");
    await writeFile(join(web, "assets/main-ABCDEFGH.js"), "start()");
    await writeFile(join(web, "assets/.hidden"), "hidden");
    await writeFile(join(web, "sdk.tgz"), "packed");
    await writeFile(join(root, "api-key"), "secret");
    api = new Api({}, { web });
  });
  after(() => rm(root, { recursive: true }));

  test("the page is revalidated, and not sent again if unchanged", async () => {
    const page = await get("/");
    assert.deepEqual([page.status, page.text], [200, "<p>dashboard</p>"]);
    assert.match(String(page.headers["content-type"]), /^text\/html; charset=utf-8$/i);
    assert.equal(page.headers["cache-control"], "no-cache");
    const again = await get("/", { "if-none-match": String(page.headers.etag) });
    assert.deepEqual([again.status, again.text], [304, ""]);
  });

  test("files named by their hash are cached for a year", async () => {
    const script = await get("/assets/main-ABCDEFGH.js");
    assert.deepEqual([script.status, script.text], [200, "start()"]);
    assert.equal(script.headers["cache-control"], "public, max-age=31536000, immutable");
    assert.match(String(script.headers["content-type"]), /javascript/);
    assert.equal((await get("/icon.svg")).headers["content-type"], "image/svg+xml");
  });

  test("headers forbid other origins and framing", async () => {
    for (const path of ["/", "/assets/main-ABCDEFGH.js", "/docs"]) {
      const { headers } = await get(path);
      assert.match(String(headers["content-security-policy"]), /default-src 'self'.*frame-ancestors 'none'/);
      assert.equal(headers["x-content-type-options"], "nosniff");
      assert.equal(headers["referrer-policy"], "no-referrer");
    }
  });

  test("the SDK's package is handed out without a key, and its absence is told", async () => {
    const packed = await get("/sdk.tgz");
    assert.deepEqual([packed.status, packed.text], [200, "packed"]);
    assert.equal(packed.headers["content-type"], "application/gzip");
    const missing = await new Api().call("GET", "/sdk.tgz", { key: null });
    assert.deepEqual([missing.status, missing.json.error.code], [404, "not_found"]);
  });

  const outside = [
    "/assets/../../api-key",
    "/assets/..%2f..%2fapi-key",
    "/assets/%2e%2e/%2e%2e/api-key",
    "/assets/....//api-key",
    "/assets//etc/passwd",
    "/assets/%00",
    "/assets/\\..\\..\\api-key",
    "/assets/.hidden",
    "/assets/",
    "/assets/missing.js",
    "/../api-key",
    "/index.html",
  ];
  for (const path of outside) {
    test(`${path} is an error in JSON`, async () => {
      const { status, json, text } = await get(path);
      assert.ok(status === 404 || status === 400, `${status} ${text}`);
      assert.ok(json.error.message);
    });
  }

  test("unknown paths are JSON errors", async () => {
    assert.equal((await get("/nothing")).json.error.code, "not_found");
    assert.equal((await api.call("POST", "/", { key: null })).status, 405);
    assert.equal((await api.call("GET", "/v1/nothing")).json.error.code, "not_found");
  });

  test("the dashboard may be missing, and built while the server runs", async () => {
    const web = join(root, "later");
    const later = new Api({}, { web });
    assert.match((await later.call("GET", "/", { key: null })).text, /not built here/);
    assert.equal((await later.call("GET", "/icon.svg", { key: null })).status, 404);
    await symlink(join(root, "web"), web);
    assert.equal((await later.call("GET", "/", { key: null })).text, "<p>dashboard</p>");
  });
});

describe("GET /docs", () => {
  test("needs no key and loads only files of this server", async () => {
    const api = new Api();
    const page = await api.call("GET", "/docs", { key: null });
    assert.equal(page.status, 200);
    const files = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, path]) => path as string);
    assert.ok(files.length >= 5);
    for (const path of files) {
      assert.match(path, /^\/docs\//);
      assert.equal((await api.call("GET", path, { key: null })).status, 200, path);
    }
    const document = await api.call("GET", "/docs/json", { key: null });
    assert.deepEqual(document.json, await api.document());
  });
});
