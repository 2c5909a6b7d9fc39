/**
 * Signed URLs of files: who has one needs no key. The signature is an HMAC-SHA256 under a secret of the capsule, over the method,
 * capsule, path, end and key, so a URL with another one of them is not valid (docs/adr/0046-sign-urls-under-a-secret-of-the-capsule.md).
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import type { FastifyRequest } from "fastify";
import type { Identity } from "../../teams/teams.ts";
import type { UrlMethod } from "../../wire/file-url.ts";
import type { Services } from "../services.ts";

/** Everything that a URL grants. */
export interface UrlGrant {
  method: UrlMethod;
  capsuleId: string;
  /** As text, see wire/file-names.ts. */
  path: string;
  /** Epoch milliseconds. */
  expiresAt: number;
  /** The URL ends with this key. */
  keyId: string;
}

const signaturePattern = /^[A-Za-z0-9_-]{43}$/;
const expiresPattern = /^[1-9][0-9]{0,14}$/;

export class SignedUrls {
  readonly #teams: Pick<Services["teams"], "holderOf" | "now">;
  readonly #capsules: Pick<Services["capsules"], "urlSecrets">;

  constructor({ teams, capsules }: Pick<Services, "teams" | "capsules">) {
    this.#teams = teams;
    this.#capsules = capsules;
  }

  now(): number {
    return this.#teams.now();
  }

  /** The URL's path and query. Throws CapsuleError("not_found"). */
  pathOf(teamId: string, grant: UrlGrant): string {
    const { capsuleId, path, expiresAt, keyId } = grant;
    const signature = signatureOf(grant, this.#capsules.urlSecrets.of(teamId, capsuleId)).toString("base64url");
    const query = new URLSearchParams({ path, expires: String(expiresAt), key: keyId, signature });
    return `/v1/capsules/${capsuleId}/files/signed?${query}`;
  }

  /**
   * The holder of the key that made the URL; undefined: it is not valid, or no more. `secret`: the capsule's, where this host does not hold
   * it. Throws CapsuleError("not_found").
   */
  holder({ method, params, query }: FastifyRequest, given?: { secret: Uint8Array | null }): Identity | undefined {
    const { id: capsuleId } = params as { id: string };
    const { path, expires, key, signature, ...added } = query as Record<string, unknown>;
    if (Object.keys(added).length > 0) return undefined;
    const secret = given === undefined ? this.#capsules.urlSecrets.known(capsuleId) : given.secret;
    if (secret === null || typeof path !== "string" || typeof key !== "string") return undefined;
    if (typeof expires !== "string" || !expiresPattern.test(expires)) return undefined;
    if (typeof signature !== "string" || !signaturePattern.test(signature)) return undefined;
    const expiresAt = Number(expires);
    const grant = { method: method as UrlMethod, capsuleId, path, expiresAt, keyId: key };
    const sent = Buffer.from(signature, "base64url");
    const isSigned = timingSafeEqual(sent, signatureOf(grant, secret)) && sent.toString("base64url") === signature;
    return isSigned && this.#teams.now() < expiresAt ? this.#teams.holderOf(key) : undefined;
  }
}

/** JSON separates the fields, whatever characters they have. */
function signatureOf({ method, capsuleId, path, expiresAt, keyId }: UrlGrant, secret: Uint8Array): Buffer {
  return createHmac("sha256", secret)
    .update(JSON.stringify(["file", method, capsuleId, path, expiresAt, keyId]))
    .digest();
}
