/**
 * Sends JSON that can be large, piece by piece: the next one is made when the client has taken the one before, and other
 * requests are served between two pieces.
 */
import { Readable } from "node:stream";
import { setImmediate as nextTurn } from "node:timers/promises";
import type { FastifyReply } from "fastify";
import type { ListingSink } from "../agent/agent.ts";
import { ChunkBuffer } from "../agent/chunk-buffer.ts";
import type { AnswerCharge } from "./access/answer-budget.ts";
import { enterPieceTurn } from "./access/answer-turns.ts";

export const jsonType = "application/json; charset=utf-8";
/** An answer up to this size is sent in one piece. */
const wholeMaxBytes = 64 * 1024;

/** `bytes`: the length of all pieces together. */
export function sendPieces(reply: FastifyReply, bytes: number, pieces: Iterable<Buffer>): FastifyReply {
  reply.header("content-type", jsonType).header("content-length", bytes);
  if (bytes <= wholeMaxBytes) return reply.send(Buffer.concat([...pieces], bytes));
  return reply.send(Readable.from(inTurns(reply, pieces), { objectMode: false, highWaterMark: wholeMaxBytes }));
}

async function* inTurns({ request }: FastifyReply, pieces: Iterable<Buffer>): AsyncGenerator<Buffer> {
  for (const piece of pieces) {
    yield piece;
    // A client on this machine can take a piece within the same turn of the event loop.
    await nextTurn();
    // A team can have a thousand such clients.
    await enterPieceTurn(request, piece.length);
  }
}

/** Shared by all listings, since a buffer per item would wait for the garbage collector. Used synchronously. */
const scratch = Buffer.allocUnsafeSlow(64 * 1024);
const encoder = new TextEncoder();

/** An object with one field, an array; or, without a field's name, the array. Each item is encoded when the guest sends it, and only its JSON is kept. */
export class JsonListing<Item> implements ListingSink<Item> {
  readonly #json = new ChunkBuffer();
  readonly #encode: (item: Item) => object;
  readonly #charge: AnswerCharge;
  readonly #end: string;
  #separator = "";

  constructor(field: string | undefined, charge: AnswerCharge, encode: (item: Item) => object) {
    this.#charge = charge;
    this.#encode = encode;
    this.#end = field === undefined ? "]" : "]}";
    this.#add(field === undefined ? "[" : `{${JSON.stringify(field)}:[`);
  }

  item(item: Item): void {
    this.#add(this.#separator + JSON.stringify(this.#encode(item)));
    this.#separator = ",";
  }

  /** Length of the JSON until now. */
  get bytes(): number {
    return this.#json.length;
  }

  reserve(bytes: number): void {
    this.#charge.add(bytes);
  }

  send(reply: FastifyReply): FastifyReply {
    this.#add(this.#end);
    return sendPieces(reply, this.#json.length, this.#json.takeBlocks());
  }

  #add(text: string): void {
    for (let from = 0; from < text.length; ) {
      const { read, written } = encoder.encodeInto(text.slice(from, from + scratch.length), scratch);
      from += read;
      this.#addBytes(scratch.subarray(0, written));
    }
  }

  #addBytes(bytes: Uint8Array): void {
    try {
      this.#charge.add(bytes.length);
    } catch (error) {
      this.#json.discard();
      throw error;
    }
    this.#json.add(bytes);
  }
}
