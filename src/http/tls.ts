/** TLS from certificate files, and the bindings that are safe without it. */
import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { BlockList, isIPv4, isIPv6 } from "node:net";
import { createSecureContext, type Server as TlsServer } from "node:tls";
import { defaultPortHost, type PortDomain } from "../network/port-domain.ts";
import type { App } from "./route.ts";

export interface Certificate {
  /** PEM: the certificate and its intermediates. */
  cert: Buffer;
  /** PEM. */
  key: Buffer;
}

export interface TlsFiles {
  certPath: string | undefined;
  keyPath: string | undefined;
}

/** undefined: no TLS. Throws when the files cannot be used; the message does not quote their content. `settings`: their first words. */
export function readCertificate(
  { certPath, keyPath }: TlsFiles,
  settings: "CAPSULE_TLS" | "CAPSULE_PORT_TLS" = "CAPSULE_TLS",
): Certificate | undefined {
  if (certPath === undefined && keyPath === undefined) return undefined;
  if (certPath === undefined || keyPath === undefined) {
    throw new Error(`TLS needs both files: set ${settings}_CERT and ${settings}_KEY, or neither`);
  }
  const certificate = { cert: readFileSync(certPath), key: readFileSync(keyPath) };
  try {
    createSecureContext(certificate);
  } catch (error) {
    const { code = "they are not in PEM form" } = error as NodeJS.ErrnoException;
    throw new Error(`the TLS files ${certPath} and ${keyPath} cannot be used: ${code}`);
  }
  return certificate;
}

export interface CertificateSettings {
  tlsCert: string | undefined;
  tlsKey: string | undefined;
  portTlsCert: string | undefined;
  portTlsKey: string | undefined;
  portDomain: PortDomain;
}

export interface Certificates {
  /** undefined: no TLS. */
  certificate: Certificate | undefined;
  /** For the URLs of ports; undefined: the server's own. */
  ofPorts: Certificate | undefined;
  /** Why browsers will refuse the URLs of ports. */
  doubt: string | undefined;
}

/** Throws when files cannot be used, and where a certificate for ports is alone or not for names below the domain. */
export function readCertificates({
  tlsCert,
  tlsKey,
  portTlsCert,
  portTlsKey,
  portDomain,
}: CertificateSettings): Certificates {
  const certificate = readCertificate({ certPath: tlsCert, keyPath: tlsKey });
  const ofPorts = readCertificate({ certPath: portTlsCert, keyPath: portTlsKey }, "CAPSULE_PORT_TLS");
  if (ofPorts !== undefined && certificate === undefined)
    throw new Error("CAPSULE_PORT_TLS_CERT is used beside CAPSULE_TLS_CERT: set that, with CAPSULE_TLS_KEY, too");
  const { host, scheme } = portDomain;
  if (ofPorts !== undefined && !isForNamesBelow(ofPorts, host))
    throw new Error(`the certificate of CAPSULE_PORT_TLS_CERT ${portTlsCert} is not for *.${host}`);
  const isUsed = certificate !== undefined && ofPorts === undefined && scheme === undefined && host !== defaultPortHost;
  const doubt =
    isUsed && !isForNamesBelow(certificate, host)
      ? `the certificate of CAPSULE_TLS_CERT is not for *.${host}, the names of ports: set CAPSULE_PORT_TLS_CERT and _KEY`
      : undefined;
  return { certificate, ofPorts, doubt };
}

function isForNamesBelow({ cert }: Certificate, domain: string): boolean {
  return new X509Certificate(cert).checkHost(`port-capsule.${domain}`, { partialWildcards: false }) !== undefined;
}

/** New connections get the new certificate; open ones keep theirs. */
export function renewCertificate(app: App, certificate: Certificate): void {
  (app.server as unknown as TlsServer).setSecureContext(certificate);
}

/** New connections to names below the domain get this certificate, once the server has one of its own. */
export function useForPorts(app: App, domain: string, certificate: Certificate): void {
  (app.server as unknown as TlsServer).addContext(`*.${domain}`, certificate);
}

/**
 * API keys must not cross a network in the clear. Throws unless the server listens on a loopback address, uses TLS, or is
 * configured to serve plain HTTP behind a proxy.
 */
export function requireSafeBinding(host: string, hasTls: boolean, plainHttp: "loopback" | "anywhere"): void {
  if (hasTls || plainHttp === "anywhere" || isLoopback(host)) return;
  throw new Error(
    `CAPSULE_HOST is ${host}, which other machines can reach, and there is no TLS: API keys would cross the network in ` +
      "the clear. Set CAPSULE_TLS_CERT and CAPSULE_TLS_KEY, or listen on 127.0.0.1 behind a proxy, or, where the " +
      "network itself is trusted, set CAPSULE_PLAIN_HTTP=anywhere",
  );
}

const loopback = new BlockList();
loopback.addSubnet("127.0.0.0", 8, "ipv4");
loopback.addAddress("::1", "ipv6");

function isLoopback(host: string): boolean {
  if (isIPv4(host)) return loopback.check(host, "ipv4");
  if (isIPv6(host)) return loopback.check(host, "ipv6");
  return host === "localhost";
}
