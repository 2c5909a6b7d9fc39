/** Certificates of a test: an authority of its own, and servers that it has signed. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface ServerKey {
  key: string;
  cert: string;
}

export class TestAuthority implements Disposable {
  readonly #folder = mkdtempSync(join(tmpdir(), "authority-"));
  /** PEM. */
  readonly certificate: string;
  #count = 0;

  constructor() {
    const made = ["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority of a test"];
    this.#openssl("req", "-x509", ...newKey, "-days", "2", ...made);
    this.certificate = this.#read("ca.pem");
  }

  /** The file of `certificate`. */
  get path(): string {
    return join(this.#folder, "ca.pem");
  }

  sign(host: string): ServerKey {
    const name = `server-${++this.#count}`;
    writeFileSync(join(this.#folder, `${name}.ext`), `subjectAltName=DNS:${host}\n`);
    this.#openssl("req", ...newKey, "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", "/CN=server of a test");
    const by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", `${name}.ext`];
    this.#openssl("x509", "-req", "-in", `${name}.csr`, "-out", `${name}.pem`, "-days", "2", ...by);
    return { key: this.#read(`${name}.key`), cert: this.#read(`${name}.pem`) };
  }

  [Symbol.dispose](): void {
    rmSync(this.#folder, { recursive: true });
  }

  #openssl(...args: string[]): void {
    execFileSync("openssl", args, { cwd: this.#folder, stdio: "pipe" });
  }

  #read(name: string): string {
    return readFileSync(join(this.#folder, name), "utf8");
  }
}

const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
