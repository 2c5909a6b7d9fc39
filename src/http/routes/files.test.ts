import assert from "node:assert/strict";
import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import type { FakeUpload } from "../../../test/fakes/agent.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { permissionsOf } from "../file-entry.ts";

async function setUp(limits: ConstructorParameters<typeof Api>[0] = {}) {
  const api = new Api(limits);
  const id = await api.capsule();
  const agent = api.agent(id);
  const post = (verb: string, json: unknown) => api.call("POST", `/v1/capsules/${id}/files/${verb}`, { json });
  const send = (verb: string, parts: [string, string | Buffer][]) =>
    api.call("POST", `/v1/capsules/${id}/files/${verb}`, form(parts));
  return { api, id, agent, post, send };
}

function form(parts: [string, string | Buffer][]) {
  const pieces = parts.flatMap(([name, body]) => [
    Buffer.from(`--bound\r\nContent-Disposition: form-data; name="${name}"; filename="x"\r\n\r\n`),
    Buffer.from(body),
    Buffer.from("\r\n"),
  ]);
  const body = Buffer.concat([...pieces, Buffer.from("--bound--\r\n")]);
  return { body, headers: { "content-type": "multipart/form-data; boundary=bound" } };
}

describe("files/read", () => {
  for (const verb of ["read", "stream/read"]) {
    for (const size of [0, 1, 40_000, 65_536, 65_537, 300_000]) {
      test(`${verb} of ${size} bytes is those bytes`, async () => {
        const { api, id, agent, post } = await setUp();
        const content = Buffer.alloc(size, "0123456789");
        agent.files.set("/f", content);
        const reply = await post(verb, { path: "/f" });
        assert.equal(reply.status, 200);
        assert.equal(reply.headers["content-type"], "application/octet-stream");
        assert.ok(Buffer.from(reply.text).equals(content));
        const chunked = verb === "stream/read" || size > 65_536;
        assert.equal(reply.headers["content-length"], chunked ? undefined : String(size));
        assert.equal((await api.call("GET", `/v1/capsules/${id}`)).json.last_active_at, null);
      });
    }

    test(`${verb}: missing is 404, a directory 400`, async () => {
      const { post } = await setUp();
      assert.equal((await post(verb, { path: "/nope" })).status, 404);
      assert.equal((await post(verb, { path: "/dir" })).status, 400);
    });
  }
});

describe("the header Range", () => {
  const size = 100_000;
  const content = Buffer.from(Array.from({ length: size }, (_, i) => ((i * 7) % 95) + 32));

  /** As RFC 9110 has it, written apart from the server's code. */
  function reference(range: string): [number, string | undefined, Buffer | undefined] {
    const [unit, spec = ""] = range.split("=");
    const [first = "", last = "", ...more] = spec.split("-");
    const isNumber = (text: string) => text === "" || /^[0-9]+$/.test(text);
    const isOne = unit?.toLowerCase() === "bytes" && spec.includes("-") && more.length === 0;
    if (!isOne || !isNumber(first) || !isNumber(last) || (first === "" && last === ""))
      return [200, undefined, content];
    const from = first === "" ? Math.max(0, size - Number(last)) : Number(first);
    const to = first === "" || last === "" ? size - 1 : Math.min(Number(last), size - 1);
    if (first !== "" && last !== "" && Number(last) < Number(first)) return [200, undefined, content];
    if (from >= size) return [416, `bytes */${size}`, undefined];
    return [206, `bytes ${from}-${to}/${size}`, content.subarray(from, to + 1)];
  }

  const edges = ["", "0", "1", "65535", "65536", "99999", "100000", "100001", "9007199254740993", "9".repeat(30)];
  const ranges = [
    ...edges.flatMap((first) => edges.map((last) => `bytes=${first}-${last}`)),
    ...["bytes=0-1,4-5", "bytes=0-1, 4-5", "items=0-1", "bytes", "bytes=", "bytes=a-b", "bytes=-1-2", "bytes=1", "0-1"],
    ...["Bytes=5-6", "bytes=+1-2", "bytes=0x1-2", "bytes=1.5-2"],
  ];

  for (const verb of ["read", "stream/read"]) {
    test(`${verb} answers as the reference does`, async () => {
      const { api, id, agent } = await setUp();
      agent.files.set("/f", content);
      for (const range of ranges) {
        const [status, contentRange, bytes] = reference(range);
        const path = `/v1/capsules/${id}/files/${verb}`;
        const reply = await api.call("POST", path, { json: { path: "/f" }, headers: { range } });
        assert.deepEqual([reply.status, reply.headers["content-range"]], [status, contentRange], range);
        assert.equal(reply.headers["accept-ranges"], "bytes");
        if (bytes === undefined) assert.equal(reply.json.error.code, "range_not_satisfiable");
        else assert.ok(Buffer.from(reply.text).equals(bytes), range);
        if (status === 206) assert.equal(reply.headers["content-length"], String(bytes?.length));
      }
    });

    test(`${verb}: of an empty file 416, of one with a validator everything`, async () => {
      const { api, id, agent } = await setUp();
      agent.files.set("/empty", Buffer.alloc(0));
      agent.files.set("/f", content);
      const read = (path: string, headers: Record<string, string>) =>
        api.call("POST", `/v1/capsules/${id}/files/${verb}`, { json: { path }, headers });
      const empty = await read("/empty", { range: "bytes=0-" });
      assert.deepEqual([empty.status, empty.headers["content-range"]], [416, "bytes */0"]);
      assert.equal((await read("/f", { range: "bytes=0-1", "if-range": '"x"' })).status, 200);
      assert.equal((await read("/no", { range: "bytes=0-1" })).status, 404);
    });
  }
});

describe("files/stat, move, chmod, chown", () => {
  test("stat is the entry; move is that of the new place", async () => {
    const { agent, post } = await setUp();
    agent.files.set("/dir/a", Buffer.from("abc"));
    const { status, json } = await post("stat", { path: "/dir/a" });
    assert.deepEqual([status, json.entry.name, json.entry.size], [200, "a", 3]);
    assert.equal((await post("stat", { path: "/no" })).status, 404);
    agent.files.set("/dir/b", Buffer.from("b"));
    const taken = await post("move", { from: "/dir/a", to: "/dir/b" });
    assert.deepEqual([taken.status, taken.json.error.code], [409, "conflict"]);
    const moved = await post("move", { from: "/dir/a", to: "/dir/b", overwrite: true });
    assert.deepEqual([moved.status, moved.json.entry.path], [200, "/dir/b"]);
    assert.deepEqual([...agent.files.keys()], ["/dir/b"]);
  });

  test("modes are octal, owners names or numbers", async () => {
    const { agent, post } = await setUp();
    agent.files.set("/f", Buffer.alloc(0));
    assert.equal((await post("chmod", { path: "/f", mode: "4755" })).status, 204);
    assert.equal((await post("chmod", { path: "/f", mode: "640", recursive: true })).status, 204);
    assert.equal((await post("chown", { path: "/f", owner: "builder", group: "100" })).status, 204);
    assert.equal((await post("chown", { path: "/f", owner: null, group: "0", recursive: true })).status, 204);
    assert.deepEqual(agent.changed, [
      { path: "/f", mode: 0o4755, recursive: false },
      { path: "/f", mode: 0o640, recursive: true },
      { path: "/f", owner: "builder", group: "100", recursive: false },
      { path: "/f", owner: undefined, group: "0", recursive: true },
    ]);
    assert.equal((await post("chown", { path: "/f", owner: "nobody-here" })).status, 400);
    assert.equal((await post("chmod", { path: "/no", mode: "600" })).status, 404);
  });

  for (const [verb, json, field] of [
    ["chmod", { path: "/f", mode: 420 }, "mode"],
    ["chmod", { path: "/f", mode: "64" }, "mode"],
    ["chmod", { path: "/f", mode: "0o644" }, "mode"],
    ["chmod", { path: "/f", mode: "888" }, "mode"],
    ["chmod", { path: "/f", mode: "07777" }, "mode"],
    ["chmod", { path: "/f" }, ""],
    ["chown", { path: "/f" }, "owner"],
    ["chown", { path: "/f", owner: "" }, "owner"],
    ["chown", { path: "/f", owner: 0 }, "owner"],
    ["move", { from: "/f", to: "x" }, "to"],
    ["move", { from: "f", to: "/x" }, "from"],
    ["move", { from: "/f", to: `/${"x".repeat(4_096)}` }, "to"],
    ["move", { from: "/f", to: "/x", overwrite: "yes" }, "overwrite"],
    ["stat", { path: "f" }, "path"],
  ] as const) {
    test(`${verb} of ${JSON.stringify(json).slice(0, 60)} is 400`, async () => {
      const { agent, post } = await setUp();
      agent.files.set("/f", Buffer.alloc(0));
      const reply = await post(verb, json);
      assert.equal(reply.status, 400);
      assert.equal(reply.json.error.details?.field ?? "", field);
      assert.deepEqual([[...agent.files.keys()], agent.changed], [["/f"], []]);
    });
  }
});

describe("the fields parents, mode and owner of a form", () => {
  const attributes = [
    ["parents", "true"],
    ["mode", "0640"],
    ["owner", "builder"],
  ] as [string, string][];
  const all = { parents: true, mode: 0o640, owner: "builder" };

  for (const verb of ["write", "stream/write"]) {
    test(`${verb}: they may stand before the file or behind it`, async () => {
      const { agent, send } = await setUp();
      const [path, file] = [["path", "/f"] as [string, string], ["file", "x"] as [string, string]];
      const [parents, mode, owner] = attributes as [[string, string], [string, string], [string, string]];
      for (const parts of [
        [path, ...attributes, file],
        [...attributes, file, path],
        [path, file, ...attributes],
        [parents, file, mode, path, owner],
        [path, file],
      ])
        assert.equal((await send(verb, parts)).status, 204);
      const told = agent.uploads.map((upload) => upload.told);
      assert.deepEqual(told, [[all], [all], [all], [{ parents: true }, all], []]);
    });

    for (const [name, value] of [
      ["parents", "yes"],
      ["parents", ""],
      ["mode", "rwx"],
      ["mode", "64"],
      ["owner", ""],
      ["owner", "a\0b"],
      ["owner", "x".repeat(257)],
    ] as [string, string][]) {
      test(`${verb}: ${name}=${JSON.stringify(value).slice(0, 20)} is 400 in either place, and nothing is written`, async () => {
        const { agent, send } = await setUp();
        for (const parts of [
          [
            ["path", "/f"],
            [name, value],
            ["file", "x"],
          ],
          [
            ["path", "/f"],
            ["file", "x"],
            [name, value],
          ],
        ] as [string, string][][]) {
          const { status, json } = await send(verb, parts);
          assert.deepEqual([status, json.error.details.field], [400, name]);
        }
        assert.equal(agent.files.size, 0);
      });
    }
  }

  test("a field that comes twice is 400", async () => {
    const { send } = await setUp();
    const reply = await send("write", [
      ["path", "/f"],
      ["mode", "600"],
      ["mode", "600"],
      ["file", "x"],
    ]);
    assert.match(reply.json.error.message, /two fields mode/);
  });
});

describe("files/list, mkdir, remove", () => {
  test("entries have all fields, and modes as ls writes them", async () => {
    const { agent, post } = await setUp();
    agent.files.set("/dir/su", Buffer.from("abc"));
    const { json } = await post("list", { path: "/dir" });
    const common = { owner: "root", group: "root", modified_at: 1_700_000_000 };
    assert.deepEqual(json.entries, [
      {
        name: "su",
        path: "/dir/su",
        type: "file",
        size: 3,
        permissions: "-rwsr-xr-x",
        ...common,
        symlink_target: null,
      },
      {
        name: "link",
        path: "/dir/link",
        type: "symlink",
        size: 6,
        permissions: "lrwxrwxrwx",
        ...common,
        symlink_target: "../gone",
      },
    ]);
    const [self] = (await post("list", { path: "/dir", depth: 0 })).json.entries;
    assert.deepEqual([self.type, self.permissions], ["directory", "drwxrwxrwt"]);
  });

  test("a listing beyond the limit is 400; missing is 404", async () => {
    const { agent, post } = await setUp({ list_entries_max: 1 });
    agent.files.set("/dir/a", Buffer.alloc(0));
    agent.files.set("/dir/b", Buffer.alloc(0));
    assert.equal((await post("list", { path: "/dir" })).status, 400);
    assert.equal((await post("list", { path: "/nope" })).status, 404);
  });

  for (const depth of [-1, 1.5, "1", {}, 1_001]) {
    test(`depth ${JSON.stringify(depth)} is 400`, async () => {
      const { post } = await setUp();
      assert.equal((await post("list", { path: "/dir", depth })).status, 400);
    });
  }

  test("beyond 8 at once a team's listings wait for each other; other requests do not", async (t) => {
    const { api, agent, post } = await setUp();
    agent.files.set("/f", Buffer.from("content"));
    const held = Promise.withResolvers<never[]>();
    const { mock } = t.mock.method(agent, "list", () => held.promise);
    const listings = Array.from({ length: 10 }, () => post("list", { path: "/dir" }));
    await waitFor("eight listings are asked for", () => mock.callCount() >= 8);
    assert.equal((await post("read", { path: "/f" })).text, "content");
    const foreign = await api.capsule("running", keys.blue);
    const json = { path: "/dir", depth: 0 };
    const other = await api.call("POST", `/v1/capsules/${foreign}/files/list`, { json, key: keys.blue });
    assert.equal(other.status, 200);
    assert.equal(mock.callCount(), 8);
    held.resolve([]);
    assert.deepEqual([...new Set((await Promise.all(listings)).map(({ status }) => status))], [200]);
    assert.equal(mock.callCount(), 10);
  });

  test("mkdir returns the entry, remove 204", async () => {
    const { agent, post } = await setUp();
    assert.equal((await post("mkdir", { path: "/a/b" })).json.entry.type, "directory");
    agent.files.set("/f", Buffer.alloc(0));
    assert.equal((await post("mkdir", { path: "/f" })).status, 400);
    const removed = await post("remove", { path: "/f" });
    assert.deepEqual([removed.status, removed.text], [204, ""]);
    assert.equal((await post("remove", { path: "/f" })).status, 404);
  });

  test("the document says that remove may be refused because a directory is being written to", async () => {
    const { api } = await setUp();
    const { paths } = (await api.call("GET", "/openapi.json")).json;
    const { responses } = paths["/v1/capsules/{id}/files/remove"].post;
    assert.deepEqual(responses[409].description.split(", ").sort(), ["conflict", "invalid_state"]);
  });

  for (const verb of ["read", "stream/read", "list", "mkdir", "remove"]) {
    test(`${verb} refuses bad paths`, async () => {
      const { post } = await setUp();
      for (const path of [
        "",
        "relative",
        "./x",
        "/a\u0000b",
        `/${"ä".repeat(2_048)}`,
        "/\ud800",
        null,
        1,
        ["/x"],
        undefined,
      ]) {
        const reply = await post(verb, { path });
        assert.deepEqual([reply.status, reply.json.error.code], [400, "invalid_request"], String(path));
      }
    });
  }
});

describe("files/write", () => {
  for (const verb of ["write", "stream/write"]) {
    test(`${verb}: path before or after the file`, async () => {
      const { agent, send } = await setUp();
      const content = Buffer.from([0, 1, 2, 253, 254, 255]);
      const before = await send(verb, [
        ["path", "/a ü"],
        ["file", content],
      ]);
      assert.deepEqual([before.status, before.text], [204, ""]);
      assert.equal(
        (
          await send(verb, [
            ["file", content],
            ["other", "x"],
            ["path", "/b"],
          ])
        ).status,
        204,
      );
      assert.deepEqual(
        [...agent.files],
        [
          ["/a ü", content],
          ["/b", content],
        ],
      );
    });

    test(`${verb}: a missing or repeated field is 400, and nothing is written`, async () => {
      const { agent, send } = await setUp();
      const forms: [string, string][][] = [
        [],
        [["path", "/a"]],
        [["file", "x"]],
        [
          ["path", "/a"],
          ["path", "/b"],
          ["file", "x"],
        ],
        [
          ["path", "/a"],
          ["file", "x"],
          ["file", "y"],
        ],
        [
          ["path", "relative"],
          ["file", "x"],
        ],
        [
          ["file", "x"],
          ["path", ""],
        ],
        [
          ["path", `/${"x".repeat(4_096)}`],
          ["file", "x"],
        ],
        [
          ["path", "/a\0b"],
          ["file", "x"],
        ],
      ];
      for (const parts of forms)
        assert.equal((await send(verb, parts)).status, 400, JSON.stringify(parts).slice(0, 100));
      assert.equal(agent.files.size, 0);
      assert.ok(agent.uploads.every((upload) => upload.cancelled));
    });

    test(`${verb}: an encoded field is 400, and nothing is written`, async () => {
      const { api, id, agent } = await setUp();
      agent.files.set("/old", Buffer.from("old"));
      const write = (path: string, file: string) =>
        api.call("POST", `/v1/capsules/${id}/files/${verb}`, {
          body: `--b\r\n${path}\r\n\r\n/old\r\n--b\r\n${file}\r\n\r\nbmV3\r\n--b--\r\n`,
          headers: { "content-type": "multipart/form-data; boundary=b" },
        });
      const [path, file] = ["path", "file"].map((name) => `Content-Disposition: form-data; name="${name}"`);
      const base64 = "\r\nContent-Transfer-Encoding: base64";
      for (const form of [
        [path, file + base64],
        [path + base64, file],
      ] as const) {
        const { status, json } = await write(...(form as [string, string]));
        assert.deepEqual([status, json.error.code], [400, "invalid_request"]);
        assert.match(json.error.message, /Content-Transfer-Encoding base64/);
        assert.equal(String(agent.files.get("/old")), "old");
      }
      const isWritten = await write(`${path}`, `${file}\r\nContent-Transfer-Encoding: binary`);
      assert.deepEqual([isWritten.status, String(agent.files.get("/old"))], [204, "bmV3"]);
    });

    test(`${verb}: a path that reads otherwise in its own charset is 400`, async () => {
      const { api, id, agent } = await setUp();
      const write = (type: string, path: string) =>
        api.call("POST", `/v1/capsules/${id}/files/${verb}`, {
          body:
            `--b\r\nContent-Disposition: form-data; name="path"\r\nContent-Type: text/plain; charset=${type}\r\n\r\n` +
            `${path}\r\n--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n`,
          headers: { "content-type": "multipart/form-data; boundary=b" },
        });
      for (const [charset, path] of [
        ["utf-8", "/ü"],
        ["UTF8", "/ü"],
        ["ISO-8859-1", "/plain"],
        ["us-ascii", "/plain"],
      ] as const) {
        assert.equal((await write(charset, path)).status, 204, charset);
      }
      assert.deepEqual([...agent.files.keys()], ["/ü", "/plain"]);
      for (const [charset, path] of [
        ["ISO-8859-1", "/ü"],
        ["iso-2022-jp", '/\x1b$B$"\x1b(B'],
        ["utf-16le", "/plain"],
        ["utf-7", "/+APw-"],
      ] as const) {
        const { status, json } = await write(charset, path);
        assert.deepEqual([status, json.error.code], [400, "invalid_request"], charset);
        assert.match(json.error.message, new RegExp(charset, "i"));
      }
      assert.equal(agent.files.size, 2);
    });

    test(`${verb}: a path that is not UTF-8 is 400`, async () => {
      const { send } = await setUp();
      assert.equal(
        (
          await send(verb, [
            ["path", Buffer.from([0x2f, 0xff])],
            ["file", "x"],
          ])
        ).status,
        400,
      );
    });

    test(`${verb}: the guest's errors keep their status`, async () => {
      const { send } = await setUp();
      assert.equal(
        (
          await send(verb, [
            ["path", "/missing/f"],
            ["file", "x"],
          ])
        ).status,
        400,
      );
      assert.equal(
        (
          await send(verb, [
            ["path", "/full/f"],
            ["file", "x"],
          ])
        ).status,
        507,
      );
    });

    test(`${verb}: a team whose writes are throttled sends nothing to its capsules`, async () => {
      const { api, agent, send, post } = await setUp();
      api.service.host.capsuleBytes = 2 ** 41;
      await api.service.disk.check();
      const { status, json } = await send(verb, [
        ["path", "/f"],
        ["file", "x"],
      ]);
      assert.deepEqual([status, json.error.code], [507, "no_space"]);
      assert.deepEqual([agent.uploads.length, agent.files.has("/f")], [0, false]);
      assert.equal((await post("mkdir", { path: "/made" })).status, 507);
    });

    test(`${verb}: anything but a form is 415`, async () => {
      const { api, id } = await setUp();
      const path = `/v1/capsules/${id}/files/${verb}`;
      assert.equal((await api.call("POST", path, { json: { path: "/a" } })).status, 415);
      assert.equal((await api.call("POST", path)).status, 415);
    });
  }

  test("the limit counts the file's bytes only, and applies to write only", async () => {
    const { agent, send } = await setUp({ file_write_max_bytes: 1_000 });
    assert.equal(
      (
        await send("write", [
          ["path", "/a"],
          ["file", Buffer.alloc(1_000)],
        ])
      ).status,
      204,
    );
    const over = await send("write", [
      ["path", "/a"],
      ["file", Buffer.alloc(1_001)],
    ]);
    assert.deepEqual([over.status, over.json.error.code], [413, "too_large"]);
    assert.equal(agent.files.get("/a")?.length, 1_000);
    assert.equal(
      (
        await send("stream/write", [
          ["path", "/a"],
          ["file", Buffer.alloc(5_000)],
        ])
      ).status,
      204,
    );
  });
});

describe("files over a socket", () => {
  let api: Api;
  let id: string;
  let port: number;
  before(async () => {
    api = new Api({ file_write_max_bytes: 2_000_000 });
    await api.app.listen({ host: "127.0.0.1", port: 0 });
    port = (api.app.server.address() as AddressInfo).port;
    id = await api.capsule();
  });
  after(() => api.app.close());

  function upload(verb: string, headers: Record<string, string | number> = {}) {
    return httpRequest({
      port,
      method: "POST",
      path: `/v1/capsules/${id}/files/${verb}`,
      headers: { "x-api-key": keys.red, "content-type": "multipart/form-data; boundary=bound", ...headers },
    });
  }
  const opening = (path: string) =>
    `--bound\r\nContent-Disposition: form-data; name="path"\r\n\r\n${path}\r\n` +
    '--bound\r\nContent-Disposition: form-data; name="file"\r\n\r\n';
  const answered = async (request: ReturnType<typeof upload>): Promise<number> => {
    const [response] = (await once(request, "response")) as [IncomingMessage];
    response.resume();
    return response.statusCode as number;
  };

  test("413 is sent before the body if its length is too large", async () => {
    const request = upload("write", { "content-length": 100_000_000 });
    request.on("error", () => {});
    request.flushHeaders();
    assert.equal(await answered(request), 413);
    request.destroy();
  });

  test("413 is sent as soon as the body exceeds the limit", async () => {
    const request = upload("write");
    request.write(opening("/big"));
    request.write(Buffer.alloc(2_000_001));
    assert.equal(await answered(request), 413);
    request.destroy();
    assert.equal(api.agent(id).files.has("/big"), false);
  });

  test("a client that sends all before it reads gets the guest's error", async () => {
    const request = upload("stream/write");
    const status = answered(request);
    request.write(opening("/missing/f"));
    for (let i = 0; i < 64; i++) request.write(Buffer.alloc(65_536));
    await new Promise<void>((sent) => request.end("\r\n--bound--\r\n", sent));
    assert.equal(await status, 400);
  });

  test("a listing whose client disconnects is cancelled", async () => {
    const agent = api.agent(id);
    const begun = new Promise<string>((resolve) => {
      agent.onList = resolve;
    });
    const request = httpRequest({
      port,
      method: "POST",
      path: `/v1/capsules/${id}/files/list`,
      headers: { "x-api-key": keys.red, "content-type": "application/json" },
    });
    request.on("error", () => {});
    request.end('{"path":"/endless"}');
    await begun;
    request.destroy();
    await waitFor("the listing is abandoned", () => agent.abandoned.length > 0);
    assert.deepEqual(agent.abandoned, ["/endless"]);
  });

  test("an incomplete upload is cancelled, and the old file stays", async () => {
    const agent = api.agent(id);
    agent.files.set("/old", Buffer.from("old"));
    const begun = new Promise<FakeUpload>((resolve) => {
      agent.onUpload = resolve;
    });
    const request = upload("stream/write");
    request.on("error", () => {});
    request.write(opening("/old"));
    request.write("new");
    const guest = await begun;
    request.destroy();
    await waitFor("the upload is cancelled", () => guest.cancelled);
    assert.equal(agent.files.get("/old")?.toString(), "old");
  });

  test("a guest that reads nothing stops the client, and memory stays bounded", async () => {
    const agent = api.agent(id);
    let open = () => {};
    const begun = new Promise<FakeUpload>((resolve) => {
      agent.onUpload = (guest) => {
        guest.gate = new Promise<void>((opened) => {
          open = opened;
        });
        resolve(guest);
      };
    });
    const request = upload("stream/write");
    const status = answered(request);
    request.write(opening("/slow"));
    const chunk = Buffer.alloc(1024 * 1024);
    let accepted = 0;
    const offered = 64;
    for (let i = 0; i < offered; i++) request.write(chunk, () => accepted++);
    const guest = await begun;
    for (let turns = 0; turns < 200; turns++) await new Promise(setImmediate);
    assert.ok(accepted < offered, `${accepted} MiB were accepted`);
    assert.ok(guest.chunks.length <= 1);
    open();
    await new Promise<void>((sent) => request.end("\r\n--bound--\r\n", sent));
    assert.equal(await status, 204);
    assert.equal(agent.files.get("/slow")?.length, offered * chunk.length);
  });
});

test("permissionsOf writes every kind of file and every special bit", () => {
  const cases: [number, string][] = [
    [0o100644, "-rw-r--r--"],
    [0o040755, "drwxr-xr-x"],
    [0o120777, "lrwxrwxrwx"],
    [0o140600, "srw-------"],
    [0o010000, "p---------"],
    [0o020620, "crw--w----"],
    [0o060660, "brw-rw----"],
    [0o104644, "-rwSr--r--"],
    [0o102755, "-rwxr-sr-x"],
    [0o102745, "-rwxr-Sr-x"],
    [0o041776, "drwxrwxrwT"],
    [0o000777, "?rwxrwxrwx"],
  ];
  for (const [mode, text] of cases) assert.equal(permissionsOf(mode), text);
});
