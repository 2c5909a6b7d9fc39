import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { Api } from "../../test/api.ts";
import { nameIn, parse } from "../cli/command.ts";
import { commands } from "../cli/commands.ts";
import { configHelp } from "../config.ts";
import { closeCodes, statusOf } from "../wire/errors.ts";
import { settableLimits } from "../wire/limits.ts";

interface Operation {
  operationId?: string;
  requestBody?: { content: Record<string, { schema: object; example?: unknown }> };
  "x-websocket"?: object;
}

describe("the OpenAPI document", () => {
  test("describes a limit as --help describes its setting", async () => {
    const { json } = await new Api().call("GET", "/openapi.json");
    const { properties } = json.components.schemas.Limits;
    const help = configHelp().split("\n");
    for (const name of Object.keys(settableLimits)) {
      const line = help.find((each) => each.startsWith(`CAPSULE_${name.toUpperCase()} `)) ?? "";
      const description = String(properties[name].description).replace(/\.$/, "").toLowerCase();
      assert.ok(description !== "" && line.toLowerCase().endsWith(`  ${description}`), `${name}: ${line}`);
    }
  });

  test("is 3.1, open to all, and describes every route with its key and its refusals", async () => {
    const api = new Api();
    const { status, json } = await api.call("GET", "/openapi.json", { key: null });
    assert.equal(status, 200);
    assert.equal(json.openapi, "3.1.0");
    for (const [path, operations] of Object.entries<Record<string, { security: object[]; responses: object }>>(
      json.paths,
    )) {
      for (const [method, { security, responses }] of Object.entries(operations)) {
        const isClosed = path.startsWith("/v1/") && path !== "/v1/sign-in" && !path.endsWith("/files/signed");
        assert.deepEqual(security.flatMap(Object.keys), isClosed ? ["apiKey", "bearer"] : [], path);
        assert.equal("401" in responses, path.startsWith("/v1/"), `${method} ${path}`);
        assert.ok("500" in responses);
        if (path.includes("{")) assert.ok("404" in responses, `${method} ${path}`);
      }
    }
  });

  test("allows null for every optional field of a body, and for no other", async () => {
    const { json } = await new Api().call("GET", "/openapi.json");
    const { schema } = json.paths["/v1/capsules/{id}/exec"].post.requestBody.content["application/json"];
    assert.equal(schema.properties.cmd.type, "string");
    for (const name of ["args", "envs", "timeout", "cwd", "background", "tag"]) {
      assert.ok(schema.properties[name].type.includes("null"), name);
    }
  });

  test("describes the messages of every WebSocket", async () => {
    const { json } = await new Api().call("GET", "/openapi.json");
    const sockets = Object.values<Record<string, Record<string, object>>>(json.paths).filter(
      ({ get }) => get?.["x-websocket"],
    );
    assert.equal(sockets.length, 5);
    for (const { get } of sockets) assert.deepEqual(Object.keys(get?.responses ?? {})[0], "101");
  });

  test("names a server, for readers that need one", async () => {
    const { json } = await new Api().call("GET", "/openapi.json");
    assert.deepEqual(
      json.servers.map(({ url }: { url: string }) => url),
      ["/"],
    );
  });

  test("lists every error code, and marks optional bodies", async () => {
    const { json } = await new Api().call("GET", "/openapi.json");
    const { Error: error } = json.components.schemas;
    assert.deepEqual(error.properties.error.properties.code.enum, Object.keys(statusOf));
    assert.equal(json.paths["/v1/capsules"].post.requestBody.required, false);
    assert.equal(json.paths["/v1/capsules/{id}/exec"].post.requestBody.required, true);
  });

  test("names every operation once, and has an example of every JSON body that its schema accepts", async () => {
    const { json } = await new Api().call("GET", "/openapi.json");
    const ajv = new Ajv2020({ strict: false });
    addFormats.default(ajv);
    const operations = Object.values<Record<string, Operation>>(json.paths).flatMap((path) => Object.values(path));
    const ids = operations.map(({ operationId }) => operationId);
    for (const id of ids) assert.match(String(id), /^[a-z][A-Za-z0-9]*$/);
    assert.equal(new Set(ids).size, ids.length);
    for (const id of ["createCapsule", "listCapsules", "getCapsule", "updateCapsule", "execCommand"])
      assert.ok(ids.includes(id));
    for (const { operationId, requestBody } of operations) {
      const media = requestBody?.content["application/json"];
      if (media === undefined) continue;
      assert.ok(media.example !== undefined, `${operationId} has no example`);
      assert.ok(ajv.validate(media.schema, media.example), `${operationId}: ${ajv.errorsText()}`);
    }
  });

  test("gives commands that the command line takes", async () => {
    const { json } = await new Api().call("GET", "/openapi.json");
    const lines = Array.from((json.info.description as string).matchAll(/`capsule ([^`]+)`/g), ([, line]) => line!);
    assert.deepEqual(
      lines.map((line) => nameIn(commands, line.split(" "))),
      ["exec", "logs", "shell", "forward"],
    );
    for (const line of lines) {
      const [name, ...words] = line.split(" ");
      assert.equal(parse(commands[name!]!, words).words[0], "ID", line);
    }
  });

  test("tells readers of every WebSocket, each type of its messages, and each close", async () => {
    const { json } = await new Api().call("GET", "/openapi.json");
    const guide: string = json.info.description;
    for (const [path, { get }] of Object.entries<Record<string, Operation>>(json.paths)) {
      const messages = get?.["x-websocket"];
      if (messages === undefined) continue;
      const row = guide
        .split("\n")
        .find((line) => line.startsWith(`| \`${path.replace("/v1/capsules/{id}/", "")}\` |`));
      assert.ok(row !== undefined, `${path} is in no row`);
      const types = Array.from(
        JSON.stringify(messages).matchAll(/"type":\{[^{}]*"const":"(\w+)"/g),
        ([, type]) => type,
      );
      assert.ok(types.length > 3 || path.endsWith("/tcp"), path); // whose messages are bytes
      for (const type of types) assert.ok(type === "error" || row.includes(`\`${type}\``), `${path}: ${type}`);
    }
    for (const code of Object.values(closeCodes)) assert.ok(guide.includes(`| ${code} |`), String(code));
  });
});
