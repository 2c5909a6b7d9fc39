/**
 * The dashboard in a real browser: one server with real VMs and one Chromium for the whole group. A test fails when a
 * page that it opened logs an error, throws, violates the page's policy, or sends a request to another host.
 */
import assert from "node:assert/strict";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before } from "node:test";
import { type Browser, type BrowserContextOptions, chromium, type Page } from "playwright-core";
import { bundle } from "../../web/build.ts";
import { Client, type TestCapsule } from "../client.ts";
import { outcomeOf } from "../failures.ts";
import { Server } from "../server.ts";
import { within } from "../wait-for.ts";

const program = "/usr/bin/chromium";
const waitMs = 120_000;
const describedMaxChars = 6_000;
const describeMs = 5_000;
/** The browser logs every refused request as an error; tests refuse some on purpose. */
const refusedRequest = /^Failed to load resource: the server responded with a status of 4\d\d/;

export const deadline = { timeout: 400_000 };

let server: Server;
let client: Client;
let browser: Browser;

before(async () => {
  const web = join(tmpdir(), `capsule-web-${process.pid}`);
  await bundle(web);
  server = await Server.start({ env: { CAPSULE_WEB: web } });
  client = await Client.connect(server.url, server.apiKey);
  const isRoot = process.getuid?.() === 0;
  browser = await chromium.launch({ executablePath: program, args: isRoot ? ["--no-sandbox"] : [] });
});

after(async () => {
  await browser?.close();
  client?.close();
  await server?.[Symbol.asyncDispose]();
  await rm(join(tmpdir(), `capsule-web-${process.pid}`), { recursive: true, force: true });
});

/** A failed test prints the last content of its pages, and the errors that the server has logged. */
afterEach(async (test) => {
  const views = [...lastViews.splice(0), ...(await Promise.all([...visitors].map((each) => each.describe())))];
  if (outcomeOf(test).passed) return;
  for (const text of [...views, ...(await server.log.unexpected())]) test.diagnostic(text);
});

/** A client with the first key, and the service's address. */
export function service(): Client {
  return client;
}

/** Visitors with open windows. */
const visitors = new Set<Visitor>();
/** Content of the windows that this test has closed. */
const lastViews: string[] = [];

export class Visitor implements AsyncDisposable {
  readonly page: Page;
  readonly #wrong: string[];

  /** In a new window, signed out. */
  static async come(path = "/", options: BrowserContextOptions = {}): Promise<Visitor> {
    const context = await browser.newContext(options);
    context.setDefaultTimeout(waitMs);
    const page = await context.newPage();
    const wrong: string[] = [];
    page.on("pageerror", (error) => wrong.push(`threw ${error.message}`));
    page.on("console", (message) => {
      const isWrong = message.type() === "error" && !refusedRequest.test(message.text());
      if (isWrong) wrong.push(`logged ${message.text()}`);
    });
    page.on("request", (request) => {
      const isOurs = request.url().startsWith(client.url) || request.url().startsWith("blob:");
      if (!isOurs) wrong.push(`asked ${request.url()}`);
    });
    await page.goto(client.url + path);
    return new Visitor(page, wrong);
  }

  /** Signed in, by default with the first key. */
  static async signedIn(hash = "", options: BrowserContextOptions = {}, key = client.key): Promise<Visitor> {
    const visitor = await Visitor.come(`/${hash}`, options);
    await visitor.signIn(key);
    return visitor;
  }

  /** On the page of a capsule. */
  static at(capsule: TestCapsule, tab: string, options: BrowserContextOptions = {}): Promise<Visitor> {
    return Visitor.signedIn(`#/capsules/${capsule.id}/${tab}`, options);
  }

  private constructor(page: Page, wrong: string[]) {
    this.page = page;
    this.#wrong = wrong;
    visitors.add(this);
  }

  async signIn(key: string): Promise<void> {
    await this.page.getByLabel("API key").fill(key);
    await this.page.keyboard.press("Enter");
    await this.page.getByRole("navigation", { name: "Main" }).waitFor();
  }

  async sees(text: string | RegExp): Promise<void> {
    await this.page.getByText(text).first().waitFor();
  }

  /**
   * Watches for a message, or a button's label, that is shown for some seconds only, which a poll may miss. The function that is
   * returned resolves once the page has shown it since this call.
   */
  async watchesFor(wanted: RegExp): Promise<() => Promise<void>> {
    const watched = await this.page.evaluateHandle((wanted) => {
      const shownNow = () => [...document.querySelectorAll("section[aria-label=Messages] p, button[aria-label]")];
      const isShown = () =>
        shownNow().some((each) => each.checkVisibility() && wanted.test(each.ariaLabel ?? each.textContent));
      const shown = new Promise<void>((resolve) => {
        const observer = new MutationObserver(() => {
          if (!isShown()) return;
          observer.disconnect();
          resolve();
        });
        const attributeFilter = ["aria-label"];
        observer.observe(document.body, { subtree: true, childList: true, characterData: true, attributeFilter });
      });
      return { shown };
    }, wanted);
    return () =>
      within(
        `${wanted} to be shown`,
        watched.evaluate(({ shown }) => shown),
      );
  }

  async presses(name: string | RegExp): Promise<void> {
    await this.page.getByRole("button", { name, exact: true }).click();
  }

  /** As `presses`, by the keyboard. */
  async keys(name: string | RegExp): Promise<void> {
    await this.page.getByRole("button", { name, exact: true }).press("Enter");
  }

  /** Navigates to another page of the dashboard. */
  async walksTo(hash: string): Promise<void> {
    await this.page.evaluate((to) => {
      location.hash = to;
    }, hash);
  }

  /** Types a line into the last terminal. */
  async enters(line: string): Promise<void> {
    await this.page.getByRole("textbox", { name: "Terminal input" }).last().focus();
    await this.page.keyboard.type(line);
    await this.page.keyboard.press("Enter");
  }

  /** Waits for a row of the visible terminal. */
  async reads(line: RegExp): Promise<void> {
    await this.page.locator(".terminal:not([hidden]) .xterm-rows > div").filter({ hasText: line }).first().waitFor();
  }

  /** The address and the accessibility tree. */
  async describe(): Promise<string> {
    const page = this.page.locator("body").ariaSnapshot({ timeout: describeMs });
    const shown = await page.catch((error) => `(${(error as Error).message})`);
    return `${this.page.url()}\n${shown.slice(0, describedMaxChars)}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    lastViews.push(await this.describe());
    visitors.delete(this);
    await this.page.context().close();
    assert.deepEqual(this.#wrong, []);
  }
}
