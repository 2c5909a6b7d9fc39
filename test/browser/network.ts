/** A capsule's ports and network in the dashboard. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { inspect } from "./axe.ts";
import { deadline, service, Visitor } from "./browser.ts";

/** On port 8000; its page says what it was asked for. */
const server = `
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<title>of the guest</title>asked for " + self.path.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`;

async function networkOf(capsule: TestCapsule) {
  return (await service().expect(200, "GET", `${capsule.path}/network`)).json;
}

test("a port appears, is opened and copied by a link, made public and private again", deadline, async () => {
  await using capsule = await service().capsule({ network: { deny: ["192.0.2.1"], public_ports: [9000] } });
  await using visitor = await Visitor.at(capsule, "network", { permissions: ["clipboard-read", "clipboard-write"] });
  const { page } = visitor;
  const row = (port: number) => page.getByRole("row").filter({ hasText: String(port) });
  await row(9000).getByText("no program listens", { exact: true }).waitFor();
  await capsule.exec({ cmd: "python3", args: ["-c", server], background: true });
  await row(8000)
    .getByText(/^python3 \(PID \d+\)$/)
    .waitFor();

  // The page's policy alone would cut the new tab off, too.
  await page.evaluate(() => {
    const open = window.open.bind(window);
    window.open = (...args) => {
      document.body.dataset.features = args[2] ?? "";
      return open(...args);
    };
  });
  const opens = page.context().waitForEvent("page");
  await visitor.presses("Open port 8000");
  const opened = await opens;
  await opened.getByText("asked for /", { exact: true }).waitFor();
  assert.equal(new URL(opened.url()).host.split(".")[0], `8000-${capsule.id}`);
  assert.deepEqual(await opened.evaluate(() => [window.opener, document.referrer]), [null, ""]);
  assert.equal(await page.evaluate(() => document.body.dataset.features), "noopener,noreferrer");
  await opened.close();

  const copied = await visitor.watchesFor(/^Copied$/);
  await visitor.presses("Copy link to port 8000");
  await copied();
  const clipboard = () => page.evaluate(() => navigator.clipboard.readText());
  assert.match(await clipboard(), new RegExp(`^http://8000-${capsule.id}\\.localhost:\\d+/\\?capsule_token=.`));

  await visitor.presses("Make port 8000 public");
  await page.getByRole("dialog").getByText("Anybody who has the URL of port 8000 may then reach it").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Make it public" }).press("Enter");
  await row(8000).getByText("public", { exact: true }).waitFor();
  assert.deepEqual((await networkOf(capsule)).public_ports, [9000, 8000]);
  await page.getByRole("button", { name: "Copy link to port 8000" }).click();
  await waitFor("a link without a token", async () => !(await clipboard()).includes("token"));
  assert.equal(new URL(await clipboard()).host.split("-")[0], "8000");

  await visitor.presses("Make port 8000 private");
  await page.getByRole("button", { name: "Make port 8000 public" }).waitFor();
  await visitor.presses("Make port 9000 private");
  await row(9000).waitFor({ state: "detached" });
  const { public_ports, deny } = await networkOf(capsule);
  assert.deepEqual([public_ports, deny], [[], ["192.0.2.1"]]);
});

test("the policy is edited in any status, and a refusal stands at its field", deadline, async () => {
  await using capsule = await service().capsule({ network: { egress: "none" } });
  await capsule.pause();
  await using visitor = await Visitor.at(capsule, "network", { viewport: { width: 390, height: 844 } });
  const { page } = visitor;
  await visitor.sees("This capsule is paused");
  await visitor.sees("What a running capsule reaches, and what is denied to it, is shown here.");
  await visitor.presses("Edit network");
  const dialog = page.getByRole("dialog");
  const field = (name: string) => dialog.getByLabel(name, { exact: true });
  await field("Reaches on the internet").selectOption("allowlist");
  await field("Allowed").fill("PyPI.org\n::1");
  await field("Denied").fill("192.0.2.0/24");
  await field("Public ports").fill("3000 8080");
  await field("Host header").fill("localhost:{port}");
  await dialog.getByRole("button", { name: "Save" }).click();
  await dialog.getByRole("alert").filter({ hasText: "Entry 2 is an IPv6 address" }).waitFor();
  const refused = await field("Allowed").evaluate((element) => {
    const described = element.getAttribute("aria-describedby")!.split(" ");
    const said = described.map((id) => document.getElementById(id)?.textContent).join(" ");
    return [
      element === document.activeElement,
      element.getAttribute("aria-invalid"),
      said.includes("Entry 2 is an IPv6 address"),
    ];
  });
  assert.deepEqual(refused, [true, "true", true]);
  assert.deepEqual(await inspect(page, "dialog"), []);
  assert.equal((await networkOf(capsule)).egress, "none");
  await field("Allowed").fill("PyPI.org\n\n*.example.com:8443\n");
  await dialog.getByRole("button", { name: "Save" }).click();
  await dialog.waitFor({ state: "detached" });
  const policy = page.locator("dl");
  for (const text of ["allowlist", "pypi.org", "*.example.com:8443", "192.0.2.0/24", "3000, 8080", "localhost:{port}"])
    await policy.getByText(text).waitFor();
  const { egress, allow, deny, public_ports, host_header } = await networkOf(capsule);
  assert.deepEqual([egress, allow, deny], ["allowlist", ["pypi.org", "*.example.com:8443"], ["192.0.2.0/24"]]);
  assert.deepEqual([public_ports, host_header], [[3000, 8080], "localhost:{port}"]);
  assert.deepEqual(await inspect(page), []);
  await visitor.walksTo(`#/capsules/${capsule.id}/details`);
  const chosen = page.getByRole("tab", { name: "Details", selected: true });
  await chosen.waitFor();
  const { x, width } = (await chosen.boundingBox())!;
  assert.ok(x >= 0 && x + width <= 390, `the chosen tab is at ${x} to ${x + width} of 390 px`);
});

test("the last connections are listed, and a denied one is allowed by its button", deadline, async () => {
  await using capsule = await service().capsule({ network: { egress: "none", deny: ["192.0.2.1"] } });
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  const at = new Date().toISOString();
  const recent = [
    { at, verdict: "allowed", reason: "", host: "a.example", address: "1.2.3.4", port: 443, count: 1 },
    { at, verdict: "denied", reason: "reserved", address: "10.0.0.1", port: 80, count: 1 },
    { at, verdict: "failed", reason: "dns", host: "gone.example", count: 3 },
    { at, verdict: "allowed", reason: "", host: "host.capsule.internal", address: "192.0.0.1", port: 11434, count: 2 },
    { at, verdict: "denied", reason: "egress none", host: "db.example", port: 5432, count: 7 },
  ];
  const effective = { egress: "allowlist", allow: ["host.capsule.internal:11434"], deny: [] };
  await page.route(`**${capsule.path}/network`, async (route) => {
    const response = await route.fetch();
    const counters = { connections_open: 1, connections_total: 9, denied_total: 8, bytes_out: 2048, bytes_in: 1024 };
    await route.fulfill({ response, json: { ...(await response.json()), recent, counters, effective } });
  });
  await visitor.walksTo(`#/capsules/${capsule.id}/network`);
  await visitor.sees("9 connections, 1 of them open, 8 denied; 2 KiB out, 1 KiB in");
  const row = (text: string) => page.getByRole("row").filter({ hasText: text });
  await row("a.example:443").getByText("1.2.3.4").waitFor();
  await row("10.0.0.1:80").getByText("a reserved address").waitFor();
  assert.equal(await row("10.0.0.1:80").getByRole("button").count(), 0);
  const cells = await row("gone.example").getByRole("cell").allInnerTexts();
  assert.deepEqual(cells.slice(0, 2), ["failed\nthe name cannot be resolved", "3"]);
  await row("host.capsule.internal:11434").getByText("192.0.0.1").waitFor();
  const named = await page.getByRole("rowheader").allInnerTexts();
  assert.deepEqual(
    named.map((text) => text.split("\n")[0]),
    recent.toReversed().map(({ host, address, port }) => [host ?? address, port].filter(Boolean).join(":")),
  );
  await page.getByRole("definition").filter({ hasText: "What is allowed" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Allow", exact: true }).count(), 1);
  assert.deepEqual(await inspect(page), []);
  const told = await visitor.watchesFor(/db\.example:5432 is allowed\./);
  await row("db.example:5432").getByRole("button", { name: "Allow" }).press("Enter");
  await told();
  const { egress, allow, deny } = await networkOf(capsule);
  assert.deepEqual([egress, allow, deny], ["allowlist", ["db.example:5432"], ["192.0.2.1"]]);
});

test("the ports of a guest that cannot list them are a sentence, and no error", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  const body = JSON.stringify({ error: { code: "conflict", message: "this capsule lists no ports" } });
  let asked = 0;
  await page.route(`**${capsule.path}/ports`, (route) => {
    asked++;
    return route.fulfill({ status: 409, contentType: "application/json", body });
  });
  await visitor.walksTo(`#/capsules/${capsule.id}/network`);
  await page.locator(".notice").filter({ hasText: "This capsule lists no ports." }).waitFor();
  await page.waitForResponse((response) => response.url().endsWith("/ports"));
  assert.ok(asked >= 2);
  assert.equal(await page.locator(".toast, [role=alert] p").count(), 0);
});

test("a create names a network, and no time that was not chosen", deadline, async () => {
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  await visitor.presses("New capsule");
  const dialog = page.getByRole("dialog");
  for (const label of ["Pause when idle", "Destroy when it has run", "Destroy when paused"]) {
    await dialog.getByLabel(label).getByText("The service's default: never").waitFor({ state: "attached" });
  }
  await dialog.getByLabel("Destroy when it has run").selectOption("Never");
  await dialog.getByLabel("Reaches on the internet").selectOption("public");
  await dialog.getByLabel("Public ports").fill("3000, x");
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await dialog.getByRole("button", { name: "Create" }).click();
  const { timeout_sec, lifetime_sec, retention_sec, network } = (await sent).postDataJSON();
  assert.deepEqual([timeout_sec, lifetime_sec, retention_sec], [undefined, 0, undefined]);
  assert.deepEqual(network, { egress: "public", public_ports: [3000, null] });
  const refusal = dialog.getByRole("alert").filter({ hasText: "Entry 2 must be a port" });
  await refusal.waitFor();
  assert.equal(await dialog.getByLabel("Public ports").getAttribute("aria-invalid"), "true");
});
