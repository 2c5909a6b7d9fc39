/**
 * The keys of connections between hosts (TLS 1.2, ECDHE-PSK): one for each pair of names and direction, derived from the cluster's secret.
 * A host without the secret fails in the handshake, and so does one that has taken the address of another.
 */
import { hkdfSync } from "node:crypto";
import type { TlsOptions } from "node:tls";

const keyBytes = 32;

/** `client`, `server`: names of hosts. */
export function peerKey(secret: Uint8Array, client: string, server: string): Buffer {
  return Buffer.from(hkdfSync("sha256", secret, "", JSON.stringify(["capsule peer", client, server]), keyBytes));
}

/** The key under which the hosts of the cluster sign tickets of WebSockets. */
export function ticketKey(secret: Uint8Array): Buffer {
  return Buffer.from(hkdfSync("sha256", secret, "", JSON.stringify(["capsule tickets"]), keyBytes));
}

/** The key under which the hosts of the cluster sign sign-in links. */
export function signInKey(secret: Uint8Array): Buffer {
  return Buffer.from(hkdfSync("sha256", secret, "", JSON.stringify(["capsule sign-in links"]), keyBytes));
}

/** The options of both ends. TLS 1.3 takes such a key for a resumed session, and Node offers none of its own there. */
export const peerTls = {
  minVersion: "TLSv1.2",
  maxVersion: "TLSv1.2",
  ciphers: "ECDHE-PSK-CHACHA20-POLY1305",
  ecdhCurve: "X25519",
} as const satisfies TlsOptions;

/** Connections of one host to another. */
export const peerConnectionsMax = 256;
/** Time for a connection and its handshake. */
export const peerHandshakeMs = 3_000;
