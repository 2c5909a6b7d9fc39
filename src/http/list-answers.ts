/**
 * Answers with many items, of which the service has all: they are made in slices, one in each turn of the event loop, so that
 * other requests are served between two slices. Each team has one such answer in the making; further ones wait for it. Their
 * items are charged to the rate of the key.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { FastifyReply } from "fastify";
import type { TSchema } from "typebox";
import type { Authentication } from "./access/authentication.ts";
import { type JsonListing, jsonType } from "./large-answer.ts";

/** Items of one slice, which take about half a millisecond. */
export const sliceItems = 100;
/** Items that cost as much as one request. */
const itemsPerToken = 4;
/** JSON of long items that costs as much as one request. */
const bytesPerToken = 2_048;

export class ListAnswers {
  readonly #charge: Authentication["charge"];
  /** The end of the last answer in line, by team. */
  readonly #lines = new Map<string, Promise<void>>();

  constructor(authentication: Pick<Authentication, "charge">) {
    this.#charge = (identity, tokens) => authentication.charge(identity, tokens);
  }

  /** The items as an array, or as the one `field` of an object. `schema` is that of an item as it is encoded. */
  async send<Item>(
    reply: FastifyReply,
    items: readonly Item[],
    { encode, schema, field }: { encode: (item: Item) => object; schema: TSchema; field?: string },
  ): Promise<void> {
    if (items.length <= sliceItems) {
      const encoded = items.map(encode);
      reply.send(field === undefined ? encoded : { [field]: encoded });
      return;
    }
    let next = 0;
    const slice = () => {
      const from = next;
      next += sliceItems;
      return items.slice(from, next).map(encode);
    };
    const frame = field === undefined ? ["[", "]"] : [`{${JSON.stringify(field)}:[`, "]}"];
    await this.sendSlices(reply, { slice, schema, begin: frame[0]!, end: () => frame[1]! });
  }

  /**
   * Fills `listing` with the items of all `turns`, until the client is gone, and resolves with what they return. `turns` begins when it is
   * the team's turn.
   */
  async fill<Item, Result>(
    reply: FastifyReply,
    listing: JsonListing<Item>,
    turns: AsyncGenerator<{ items: Item[]; seen: number }, Result>,
  ): Promise<Result | undefined> {
    const { identity } = reply.request;
    return await this.#inLine(identity.teamId, async () => {
      for (;;) {
        const { done, value } = await turns.next();
        if (done) return value;
        const before = listing.bytes;
        for (const item of value.items) listing.item(item);
        this.#charge(identity, Math.max(value.seen / itemsPerToken, (listing.bytes - before) / bytesPerToken));
        if (reply.raw.destroyed) return undefined;
      }
    });
  }

  /** Calls `slice` once in each turn until it returns fewer than `sliceItems`. `begin` and `end` are the JSON around the items. */
  async sendSlices(
    reply: FastifyReply,
    { slice, schema, begin, end }: { slice: () => object[]; schema: TSchema; begin: string; end: () => string },
  ): Promise<void> {
    const { identity } = reply.request;
    const serialize = reply.compileSerializationSchema(schema as unknown as Record<string, unknown>);
    const text = await this.#inLine(identity.teamId, async () => {
      const pieces: string[] = [];
      for (;;) {
        const items = slice();
        for (const item of items) pieces.push(serialize(item as Record<string, unknown>));
        this.#charge(identity, items.length / itemsPerToken);
        if (items.length < sliceItems || reply.raw.destroyed) return `${begin}${pieces.join(",")}${end()}`;
        await nextTurn();
      }
    });
    reply.header("content-type", jsonType).send(text);
  }

  async #inLine<T>(teamId: string, work: () => Promise<T>): Promise<T> {
    const before = this.#lines.get(teamId);
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#lines.set(teamId, promise);
    try {
      await before;
      return await work();
    } finally {
      resolve();
      if (this.#lines.get(teamId) === promise) this.#lines.delete(teamId);
    }
  }
}
