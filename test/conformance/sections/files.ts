/** Section "Files": reading and writing; listing, making and removing are in directories.ts. */
import assert from "node:assert/strict";
import http from "node:http";
import { after, before, describe } from "node:test";
import type { Call, Reply, TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { conforms, section, test } from "../conforms.ts";
import { Random } from "../random.ts";
import { refused } from "../refusals.ts";
import { fileForm } from "../requests.ts";
import { client, expectErrors } from "../service.ts";

const mib = 1024 * 1024;
const reads = ["files/read", "files/stream/read"] as const;
const writes = ["files/write", "files/stream/write"] as const;

export const files = section(import.meta, "reading and writing files", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await client.capsule();
    await capsule.sh("mkdir /data");
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  function read(path: unknown, by: (typeof reads)[number] = "files/read"): Promise<Reply> {
    return client.call("POST", `${capsule.path}/${by}`, { json: { path } });
  }

  function write(
    path: string,
    content: string | Uint8Array,
    by: (typeof writes)[number] = "files/write",
  ): Promise<Reply> {
    return client.call("POST", `${capsule.path}/${by}`, { form: fileForm(path, content) });
  }

  function send(form: NonNullable<Call["form"]>, by: (typeof writes)[number] = "files/write"): Promise<Reply> {
    return client.call("POST", `${capsule.path}/${by}`, { form });
  }

  describe("write and read", () => {
    conforms(
      ["POST /v1/capsules/{id}/files/write 204", "POST /v1/capsules/{id}/files/read 200"],
      "204, no body; 200, raw bytes, `Content-Type: application/octet-stream`",
      async () => {
        const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
        const written = await write("/data/bytes", bytes);
        assert.deepEqual([written.status, written.bytes.length], [204, 0], written.text);
        const { status, headers, bytes: got } = await read("/data/bytes");
        assert.equal(status, 200);
        assert.equal(headers["content-type"], "application/octet-stream");
        assert.deepEqual([...got], [...bytes]);
      },
    );

    conforms(
      ["POST /v1/capsules/{id}/files/stream/write 204", "POST /v1/capsules/{id}/files/stream/read 200"],
      "same content delivered with chunked transfer encoding",
      async () => {
        assert.equal((await write("/data/streamed", "content", "files/stream/write")).status, 204);
        const { status, headers, bytes } = await read("/data/streamed", "files/stream/read");
        assert.equal(status, 200);
        assert.equal(headers["transfer-encoding"], "chunked");
        assert.equal(headers["content-length"], undefined);
        assert.equal(headers["content-type"], "application/octet-stream");
        assert.equal(bytes.toString(), "content");
      },
    );

    test("contents of 0 bytes to beyond every buffer size, one more and one less", async (t) => {
      const random = new Random(t);
      const borders = [1, 4_096, 16_384, 65_536, 131_072, 262_144, 524_288, mib, 4 * mib];
      const sizes = new Set([0, ...borders.flatMap((size) => [size - 1, size, size + 1])]);
      const all = new Uint8Array(await crypto.subtle.digest("SHA-256", random.bytes(8))); // input of the first hash
      const source = new Uint8Array(4 * mib + 1).map((_, i) => all[i % 31]! ^ (i >> 8));
      for (const size of sizes) {
        const content = source.slice(0, size);
        const [way, back] = [writes[random.below(2)]!, reads[random.below(2)]!];
        assert.equal((await write("/data/sized", content, way)).status, 204, `${way} ${size}`);
        assert.ok((await read("/data/sized", back)).bytes.equals(content), `${way}, ${back}: ${size}`);
      }
    });

    test("files/write takes exactly its limit, and stream/write avoids the limit", async () => {
      const limit = (await client.expect(200, "GET", "/v1/limits")).json.file_write_max_bytes;
      assert.equal((await write("/data/large", new Uint8Array(limit))).status, 204);
      assert.equal(await capsule.sh("stat -c %s /data/large"), String(limit));
      assert.equal((await write("/data/large", new Uint8Array(limit + 1), "files/stream/write")).status, 204);
      assert.equal(
        await capsule.sh("stat -c %s /data/large; tail -c 1 /data/large | od -An -tx1; rm /data/large"),
        `${limit + 1}\n 00`,
      );
    });

    test("names with spaces, quotes, newlines, umlauts and 255 bytes", async () => {
      for (const name of [
        "a b",
        `"'\\`,
        "new\nline",
        "ünïcödé €𝄞",
        "-rf",
        "*",
        "x".repeat(255),
        "%2e%2e",
        "é".repeat(127),
      ]) {
        const path = `/data/${name}`;
        assert.equal((await write(path, name)).status, 204, name);
        assert.equal((await read(path)).bytes.toString(), name);
      }
      refused(await write(`/data/${"x".repeat(256)}`, ""), 400, "invalid_request");
    });
  });

  describe("names that are no UTF-8", () => {
    const bytesOf: Record<string, string> = {
      "caf\u{10f8e9}": "\\xe9",
      "caf\u{10f8e8}": "\\xe8",
      "caf\ufffd": "\\xef\\xbf\\xbd",
    };
    const list = async (path: string) =>
      (await client.expect(200, "POST", `${capsule.path}/files/list`, { json: { path } })).json.entries;

    test("an entry is read and removed by the path that the listing gave it", async () => {
      const folder = "/data/names\u{10f8ff}";
      await client.expect(200, "POST", `${capsule.path}/files/mkdir`, { json: { path: folder } });
      for (const [name, bytes] of Object.entries(bytesOf)) {
        const by = name.endsWith("8}") ? "files/stream/write" : "files/write";
        assert.equal((await write(`${folder}/${name}`, bytes, by)).status, 204);
        const file = `/data/names$'\\xff'/caf$'${bytes}'`;
        assert.equal((await capsule.run("bash", ["-c", `cat ${file}`])).stdout, bytes, "its name has these bytes");
      }
      await capsule.run("bash", ["-c", "ln -s caf$'\\xe9' /data/names$'\\xff'/link"]);
      const entries = await list(folder);
      assert.deepEqual(
        new Set(entries.map(({ name }: { name: string }) => name)),
        new Set([...Object.keys(bytesOf), "link"]),
      );
      for (const { name, path, symlink_target } of entries) {
        assert.equal(path, `${folder}/${name}`);
        const expected = bytesOf[symlink_target ?? name];
        assert.equal((await read(path)).bytes.toString(), expected);
        assert.equal((await read(path, "files/stream/read")).bytes.toString(), expected);
      }
      for (let left = entries; left.length > 0; ) {
        const { path } = left[0];
        await client.expect(204, "POST", `${capsule.path}/files/remove`, { json: { path } });
        const others = await list(folder);
        assert.deepEqual(others, left.slice(1));
        left = others;
      }
    });

    test("a NUL and a missing slash are refused in this form too; the limit counts the bytes of the name", async () => {
      for (const path of ["/data/\u{10f800}", "\u{10f82f}data"])
        await refused(await read(path), 400, "invalid_request");
      assert.equal((await write(`/data/${"\u{10f8e9}".repeat(255)}`, "long")).status, 204);
      assert.equal((await read(`/data/${"\u{10f8e9}".repeat(255)}`)).bytes.toString(), "long");
      await refused(await read(`/${"\u{10f8e9}/".repeat(2_048)}`), 400, "invalid_request");
    });
  });

  test("a target that is a mount point is written in place", async () => {
    await capsule.sh("echo old >/data/source; chmod 640 /data/source; touch /data/mounted /data/other");
    await capsule.sh("mount --bind /data/source /data/mounted");
    for (const by of writes) {
      const content = Buffer.alloc(3 * mib, by);
      assert.equal((await write("/data/mounted", content, by)).status, 204);
      for (const path of ["/data/mounted", "/data/source"]) assert.ok((await read(path)).bytes.equals(content), path);
      assert.equal((await write("/data/mounted", "short", by)).status, 204);
      assert.equal((await read("/data/source")).bytes.toString(), "short");
    }
    assert.equal(await capsule.sh("stat -c %a /data/source; ls -A /data | grep -c ^.capsule || true"), "640\n0");
    await capsule.sh("umount /data/mounted");
  });

  describe("write", () => {
    for (const by of writes) {
      test(`${by}: parent directory must already exist: 400, also when it is a file`, async () => {
        await write("/data/file", "x");
        for (const path of ["/data/none/file", "/data/file/below", "/none/none/none"]) {
          refused(await write(path, "x", by), 400, "invalid_request", path);
        }
        refused(await write("/data", "x", by), 400, "invalid_request", "a directory");
        refused(await write("/", "x", by), 400, "invalid_request", "the root");
      });

      test(`${by}: paths must be absolute, free of NUL and not too long`, async () => {
        for (const path of ["", "x", "./x", "../x", "/data/\0x", `/${"x/".repeat(2_100)}`]) {
          refused(await write(path, "x", by), 400, "invalid_request", path.slice(0, 20));
        }
      });

      test(`${by}: \`path\` may stand behind \`file\``, async () => {
        const form = fileForm("/data/late", "x".repeat(300_000)).reverse();
        assert.equal((await send(form, by)).status, 204);
        assert.equal(await capsule.sh("stat -c %s /data/late"), "300000");
        assert.equal(
          await capsule.sh("find / -xdev -newer /data/late -size 300000c 2>/dev/null | wc -l"),
          "0",
          "nothing left",
        );
      });

      test(`${by}: a form without path or file, or no form at all, is refused`, async () => {
        const [path, file] = fileForm("/data/x", "x");
        for (const form of [[path!], [file!], []]) refused(await send(form, by), 400, "invalid_request");
        refused(
          await client.call("POST", `${capsule.path}/${by}`, { json: { path: "/data/x", file: "x" } }),
          415,
          "unsupported_media_type",
        );
      });

      test(`${by}: new files are 0644 root; an existing file keeps owner and mode; a symlink is followed`, async () => {
        await capsule.sh(
          "rm -rf /data/w; mkdir /data/w; cd /data/w; echo old > kept; chown 33:44 kept; chmod 4751 kept; ln -s kept link",
        );
        assert.equal((await write("/data/w/new", "x", by)).status, 204);
        assert.equal((await write("/data/w/link", "new content", by)).status, 204);
        const seen = await capsule.sh("cd /data/w; stat -c '%n %a %u %g %F' new kept link; cat kept; ls -A | wc -l");
        assert.deepEqual(seen.replace("new content", "new content\n").split("\n"), [
          "new 644 0 0 regular file",
          "kept 4751 33 44 regular file",
          "link 777 0 0 symbolic link",
          "new content",
          "3",
        ]);
      });

      test(`${by}: the bytes of a field are its content; one that says that it is encoded is 400`, async () => {
        const send = (encoding: string) => {
          const headers = { "content-type": "multipart/form-data; boundary=x" };
          const part = (name: string, more = "") =>
            `--x\r\nContent-Disposition: form-data; name="${name}"${more}\r\n\r\n`;
          const file = part("file", `\r\nContent-Transfer-Encoding: ${encoding}`);
          const body = `${part("path")}/data/encoded\r\n${file}YQ==\r\n--x--\r\n`;
          return client.call("POST", `${capsule.path}/${by}`, { headers, body });
        };
        await capsule.sh("echo old > /data/encoded");
        for (const encoding of ["base64", "quoted-printable", "x-other"])
          refused(await send(encoding), 400, "invalid_request", encoding);
        assert.equal(await capsule.sh("cat /data/encoded"), "old");
        for (const encoding of ["binary", "8bit", "7bit"]) assert.equal((await send(encoding)).status, 204, encoding);
        assert.equal(await capsule.sh("cat /data/encoded"), "YQ==");
      });

      test(`${by}: an upload aborted at any point leaves the old file and nothing else`, async (t) => {
        const random = new Random(t);
        await capsule.sh("rm -rf /data/a; mkdir /data/a; echo old > /data/a/file");
        const form = openForm("/data/a/file", 900_000);
        const points = [form.length, 10, ...Array.from({ length: 10 }, () => random.below(form.length))];
        for (const point of points) await abortUpload(by, form.subarray(0, point));
        await waitFor("nothing is left", async () => (await capsule.sh("ls -A /data/a")) === "file");
        assert.equal(await capsule.sh("cat /data/a/file"), "old");
        const opened = "ls -l /proc/1/fd | grep -c /data/a || true";
        await waitFor("the agent has it open no longer", async () => (await capsule.sh(opened)) === "0");
      });
    }

    test("readers see the old or the new content, never a mixture", async () => {
      await capsule.sh("head -c 1000000 /dev/zero | tr '\\0' a > /data/atomic");
      const program = `
import os
seen = set()
while not os.path.exists('/data/enough'):
    content = open('/data/atomic').read()
    seen.add((len(content), ''.join(sorted(set(content)))))
    open('/data/reading', 'a').close()
print(sorted(seen))`;
      const reader = capsule.run("python3", ["-c", program], { timeout: 0 });
      await capsule.sh("until [ -e /data/reading ]; do sleep 0.02; done");
      for (let i = 0; i < 12; i++) await write("/data/atomic", (i % 2 ? "a" : "b").repeat(1_000_000));
      await capsule.run("touch", ["/data/enough"]);
      assert.match((await reader).stdout, /^\[\(1000000, 'a'\)(, \(1000000, 'b'\))?\]\n$/);
    });

    test("no space: 507, and the old file is intact", async () => {
      expectErrors(/"message":"\/tiny\/file does not fit: no space left"/);
      await capsule.sh("mkdir -p /tiny && mount -t tmpfs -o size=512k tmpfs /tiny && echo old > /tiny/file");
      for (const by of writes) refused(await write("/tiny/file", "x".repeat(mib), by), 507, "no_space", by);
      assert.equal(await capsule.sh("cat /tiny/file; ls -A /tiny | wc -l; umount /tiny"), "old\n1");
    });
  });

  describe("read", () => {
    for (const [by, row] of [
      ["files/read", "POST /v1/capsules/{id}/files/read 404 path"],
      ["files/stream/read", "POST /v1/capsules/{id}/files/stream/read 404 path"],
    ] as const) {
      conforms(row, "path does not exist inside the capsule", async () => {
        await capsule.sh("ln -sf nothing /data/dangling");
        for (const path of ["/data/nothing", "/nothing/nothing", "/data/dangling", `/data/${"z".repeat(255)}`]) {
          refused(await read(path, by), 404, "not_found", path);
        }
      });

      test(`${by}: a directory or a special file is 400; so is an invalid path`, async () => {
        await capsule.sh(
          "cd /data; [ -p fifo ] || mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")' 2>/dev/null; true",
        );
        for (const path of [
          "/data",
          "/",
          "/data/fifo",
          "/data/sock",
          "/dev/zero",
          "/dev/null",
          "",
          "data",
          "/a\0b",
          1,
          null,
        ]) {
          refused(await read(path, by), 400, "invalid_request", String(path));
        }
        refused(await client.call("POST", `${capsule.path}/${by}`, { json: {} }), 400, "invalid_request");
      });

      test(`${by}: a client that disconnects during the download ends reading in the guest`, async () => {
        await capsule.sh("truncate -s 3G /data/endless");
        const reads = () => capsule.sh("ls -l /proc/1/fd | grep -c /data/endless || true");
        const request = asked(by, { "content-type": "application/json" });
        request.end('{"path":"/data/endless"}');
        const response = await new Promise<http.IncomingMessage>((come) => request.once("response", come));
        await new Promise((come) => response.once("readable", () => come(response.read())));
        assert.equal(await reads(), "1");
        request.destroy();
        await waitFor("it is closed", async () => (await reads()) === "0");
      });

      test(`${by}: links are followed, files of /proc read, holes are zeros`, async () => {
        await capsule.sh("cd /data; echo target > t; ln -sf t l1; ln -sf l1 l2; rm -f hole; truncate -s 3000000 hole");
        assert.equal((await read("/data/l2", by)).bytes.toString(), "target\n");
        assert.match((await read("/proc/meminfo", by)).bytes.toString(), /^MemTotal:/);
        assert.ok((await read("/data/hole", by)).bytes.equals(Buffer.alloc(3_000_000)));
      });
    }
  });

  /** A form without its end. */
  function openForm(path: string, fileBytes: number): Buffer {
    const part = (disposition: string) => `--x\r\nContent-Disposition: form-data; ${disposition}\r\n\r\n`;
    const head = `${part('name="path"')}${path}\r\n${part('name="file"; filename="f"')}`;
    return Buffer.concat([Buffer.from(head), Buffer.alloc(fileBytes, "n"), Buffer.from("\r\n--x")]);
  }

  /** Sends a part of a form, then disconnects. */
  async function abortUpload(by: string, begun: Buffer): Promise<void> {
    const headers = { "content-type": "multipart/form-data; boundary=x", "content-length": 5_000_000 };
    const request = asked(by, headers);
    await new Promise((sent) => request.write(begun, sent));
    await new Promise(setImmediate);
    request.destroy();
  }

  function asked(verb: string, headers: http.OutgoingHttpHeaders): http.ClientRequest {
    const { hostname, port } = new URL(client.url);
    const path = `${capsule.path}/${verb}`;
    const request = http.request({
      hostname,
      port,
      path,
      method: "POST",
      headers: { "x-api-key": client.key, ...headers },
    });
    request.on("response", ({ statusCode, headers: answered }) =>
      client.contract.check({ method: "POST", path, status: statusCode!, headers: answered, body: undefined }),
    );
    return request.on("error", () => {});
  }
});
