/**
 * A WebSocket client with random messages. The server's messages and close codes must conform to the OpenAPI document.
 */
import assert from "node:assert/strict";
import { once } from "node:events";
import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";
import { WebSocket } from "ws";
import { closeCodes } from "../../src/wire/errors.ts";
import type { Random } from "../conformance/random.ts";
import type { OpenApi } from "../openapi-contract.ts";
import type { FuzzedRequest, Operation, Requests } from "./requests.ts";
import { chance } from "./values.ts";

const deadlineMs = 120_000;
/** Close codes of RFC 6455: protocol error, unacceptable data, no close frame, invalid UTF-8, message too big. */
const protocolCodes = [1002, 1003, 1006, 1007, 1009];
/** The client's own close code, which the server echoes. */
const ownCode = 4999;
const known = new Set<number>([...Object.values(closeCodes), ...protocolCodes, ownCode]);

export class Conversations {
  readonly #ajv = new Ajv2020({ strict: false, validateFormats: false });
  readonly #checks = new Map<Operation, ValidateFunction>();
  readonly #requests: Requests;
  readonly #random: Random;
  messages = 0;

  constructor(document: OpenApi, requests: Requests, random: Random) {
    this.#ajv.addSchema(document, "api");
    this.#requests = requests;
    this.#random = random;
  }

  /** Resolves with the HTTP status; 101 after a conversation. */
  async hold(url: string, key: string, { operation, path, headers }: FuzzedRequest): Promise<number> {
    const target = new URL(path, url);
    target.protocol = "ws:";
    const socket = new WebSocket(target, { headers: { "x-api-key": key, ...headers }, perMessageDeflate: false });
    const problems: unknown[] = [];
    socket.on("message", (data, isBinary) => {
      try {
        assert.equal(isBinary, false);
        this.#check(operation, JSON.parse(data.toString()));
      } catch (error) {
        problems.push(error);
      }
    });
    const status = await opening(socket);
    if (status !== 101) return status;
    const closed = once(socket, "close", { signal: AbortSignal.timeout(deadlineMs) });
    await this.#talk(socket, operation);
    const [code] = (await closed) as [number];
    assert.ok(known.has(code), `${path} was closed with ${code}`);
    assert.deepEqual(problems, [], path);
    return status;
  }

  async #talk(socket: WebSocket, operation: Operation): Promise<void> {
    const random = this.#random;
    for (let left = random.size(8); left > 0 && socket.readyState === WebSocket.OPEN; left--) {
      if (chance(random, 4)) socket.send(random.bytes(random.size(3_000)));
      else socket.send(this.#requests.message(operation));
      this.messages++;
      // Sometimes waits until the message is sent, so that the next one arrives in another state.
      if (chance(random, 40)) await new Promise((resolve) => socket.ping(resolve));
    }
    if (chance(random, 60)) socket.send('{"type":"kill"}');
    if (chance(random, 50)) socket.close(chance(random, 50) ? 1000 : ownCode, "fuzzed");
    else socket.terminate();
  }

  #check(operation: Operation, message: unknown): void {
    let check = this.#checks.get(operation);
    if (check === undefined) {
      const at = ["paths", operation.path, operation.method.toLowerCase(), "x-websocket", "server"];
      const pointer = at.map((part) => encodeURIComponent(part.replaceAll("/", "~1"))).join("/");
      check = this.#ajv.compile({ $ref: `api#/${pointer}` });
      this.#checks.set(operation, check);
    }
    assert.ok(check(message), `${operation.path} sent ${JSON.stringify(message).slice(0, 300)}`);
  }
}

function opening(socket: WebSocket): Promise<number> {
  return new Promise((resolve, reject) => {
    socket.on("error", reject);
    socket.once("open", () => {
      socket.on("error", () => {});
      resolve(101);
    });
    socket.once("unexpected-response", (_request, response) => {
      response.resume();
      response.once("end", () => resolve(response.statusCode ?? 0));
    });
  });
}
