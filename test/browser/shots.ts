/** The pages of the dashboard as pictures show them: each with what is to be seen on it, and what brings it there. */
import type { Page } from "playwright-core";
import type { Places } from "./places.ts";

export interface Shot {
  name: string;
  /** The fragment of its address. */
  at: string;
  /** Text that is there once the page is. */
  sign: string | RegExp;
  act?: (page: Page) => Promise<unknown>;
  /** Signed out. */
  isOut?: true;
  /** The window only, not all of the page. */
  isWindow?: true;
}

export interface Scene extends Places {
  paused: string;
  stopped: string;
  failed: string;
}

export const press = (page: Page, name: string | RegExp) =>
  page.getByRole("button", { name, exact: true }).press("Enter");

/** Answers requests of the page by this. */
const answering = (glob: string, status: number, json: unknown) => async (page: Page) => {
  await page.route(glob, (route) => route.fulfill({ status, json }));
  await page.reload();
};

const never = (glob: string) => async (page: Page) => {
  await page.route(glob, () => new Promise<void>(() => {}));
  await page.reload();
};

/** Whether or not another window has left sessions behind. */
async function openTerminal(page: Page): Promise<void> {
  const none = page.getByText("No terminal open");
  await page.getByText("Connected.").or(none).first().waitFor();
  if (await none.isVisible()) await press(page, "New terminal");
  await page.locator(".xterm-rows > div").filter({ hasText: /#/ }).first().waitFor();
}

const refusal = { error: { code: "internal_error", message: "the service could not answer; see its log" } };

export function pagesOf({ capsule: { id }, paused, stopped, failed }: Scene): Shot[] {
  const page = `#/capsules/${id}`;
  return [
    { name: "sign-in", at: "", sign: "Sign in", isOut: true },
    {
      name: "sign-in-refused",
      at: "",
      sign: "Sign in",
      isOut: true,
      act: async (page) => {
        await page.getByLabel("API key").fill("capk_wrong");
        await page.keyboard.press("Enter");
        await page.getByRole("alert").waitFor();
      },
    },
    { name: "capsules", at: "#/capsules", sign: /^CPU \d+ %$|^paused$/ },
    {
      name: "capsules-chosen",
      at: "#/capsules",
      sign: "paused",
      act: (page) => page.getByRole("checkbox", { name: "Choose all capsules" }).press("Space"),
    },
    {
      name: "capsules-none-match",
      at: "#/capsules",
      sign: "paused",
      act: (page) => page.getByLabel("Filter capsules").fill("nothing has this name"),
    },
    {
      name: "capsules-empty",
      at: "#/capsules",
      sign: "",
      act: async (page) => {
        await page.route(/\/v1\/capsules(\?.*)?$/, (route) => route.fulfill({ json: [] }));
        await page.reload();
        await page.getByText("No capsules yet").waitFor();
      },
    },
    {
      name: "terminal",
      at: `${page}/terminal`,
      sign: "",
      act: async (page) => {
        await openTerminal(page);
        await page.getByRole("textbox", { name: "Terminal input" }).focus();
        await page.keyboard.type("ls -la --color /etc | head -20; echo end$((40+2))\n");
        await page.locator(".xterm-rows > div").filter({ hasText: "end42" }).waitFor();
      },
      isWindow: true,
    },
    {
      name: "terminal-full",
      at: `${page}/terminal`,
      sign: "",
      act: async (page) => {
        await openTerminal(page);
        await press(page, "Full size");
      },
      isWindow: true,
    },
    {
      name: "terminal-left",
      at: `${page}/terminal`,
      sign: "",
      act: async (page) => {
        await openTerminal(page);
        await page.evaluate(() => {
          location.hash = "#/capsules";
        });
        await page.getByText("still running").waitFor();
      },
      isWindow: true,
    },
    {
      name: "terminal-left-elsewhere",
      at: `${page}/terminal`,
      sign: "",
      act: async (page) => {
        await openTerminal(page);
        await page.evaluate((to) => {
          location.hash = to;
        }, `#/capsules/${paused}/terminal`);
        await page.getByText("still running").waitFor();
      },
      isWindow: true,
    },
    {
      name: "terminal-sessions",
      at: `${page}/details`,
      sign: "Status since",
      act: async (page) => {
        await page.evaluate(() => sessionStorage.clear());
        await page.getByRole("tab", { name: "Terminal" }).click();
        await page.getByText("No terminal open").waitFor();
        await page.getByRole("button", { name: /^Join/ }).first().waitFor();
      },
    },
    { name: "files", at: `${page}/files`, sign: ".bashrc" },
    {
      name: "files-drop",
      at: `${page}/files`,
      sign: ".bashrc",
      act: async (page) => {
        const dataTransfer = await page.evaluateHandle(() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File(["x"], "x"));
          return transfer;
        });
        await page.locator(".drop-zone").dispatchEvent("dragenter", { dataTransfer });
      },
    },
    {
      name: "files-upload",
      at: `${page}/files`,
      sign: ".bashrc",
      act: async (page) => {
        await page.route("**/files/stream/write", () => new Promise<void>(() => {}));
        const file = (name: string) => ({ name, mimeType: "text/plain", buffer: Buffer.from(name) });
        const input = page.getByLabel("Files to upload");
        await input.setInputFiles([file("a-file-with-a-rather-long-name-that-goes-on.tar.gz"), file("second")]);
        await page.getByRole("progressbar").first().waitFor();
      },
    },
    {
      name: "files-empty",
      at: `${page}/files`,
      sign: ".bashrc",
      act: async (page) => {
        await page.getByLabel("Path to open").fill("/mnt");
        await page.keyboard.press("Enter");
        await page.getByText("This folder is empty").waitFor();
      },
    },
    { name: "processes", at: `${page}/processes`, sign: "/init" },
    { name: "network", at: `${page}/network`, sign: "8000" },
    { name: "network-paused", at: `#/capsules/${paused}/network`, sign: "What a running capsule reaches" },
    {
      name: "metrics",
      at: `${page}/metrics`,
      sign: "CPU, share of its vCPUs",
      act: (page) => page.locator("canvas").nth(2).waitFor(),
    },
    {
      name: "metrics-table",
      at: `${page}/metrics`,
      sign: "CPU, share of its vCPUs",
      act: (page) => page.locator(".plot-table > summary").first().press("Enter"),
    },
    { name: "details", at: `${page}/details`, sign: "Status since" },
    {
      name: "details-menu",
      at: `${page}/details`,
      sign: "Status since",
      act: async (page) => {
        await press(page, "More actions");
        await page.getByText("Stops the capsule and deletes").waitFor();
      },
      isWindow: true,
    },
    {
      name: "details-tip",
      at: `${page}/details`,
      sign: "Status since",
      act: async (page) => {
        await page.getByRole("button", { name: "Snapshot" }).hover();
        await page.getByRole("tooltip").filter({ visible: true }).waitFor();
      },
      isWindow: true,
    },
    { name: "paused", at: `#/capsules/${paused}/terminal`, sign: "Resume this capsule" },
    { name: "stopped", at: `#/capsules/${stopped}/files`, sign: "Start this capsule" },
    { name: "failed", at: `#/capsules/${failed}/terminal`, sign: "This capsule failed" },
    { name: "failed-details", at: `#/capsules/${failed}/details`, sign: "Status since" },
    { name: "not-found", at: "#/capsules/cl-none/files", sign: "This capsule does not exist" },
    { name: "templates", at: "#/templates", sign: "built-in" },
    { name: "keys", at: "#/keys", sign: "this session" },
    {
      name: "usage",
      at: "#/usage",
      sign: "Virtual CPUs of one capsule",
      act: (page) => page.locator("canvas").nth(3).waitFor(),
    },
    { name: "audit", at: "#/audit", sign: /^just now$| ago$/ },
    { name: "audit-of-one", at: `#/audit?capsule=${id}`, sign: /^just now$| ago$/ },
    {
      name: "loading",
      at: "#/audit",
      sign: "",
      act: async (page) => {
        await never("**/v1/audit*")(page);
        await page.getByRole("status", { name: "Loading" }).waitFor();
      },
    },
    {
      name: "not-loaded",
      at: "#/audit",
      sign: "",
      act: async (page) => {
        await answering("**/v1/audit*", 500, refusal)(page);
        await page.getByText("Try again").waitFor();
      },
    },
    {
      name: "toasts",
      at: `${page}/files`,
      sign: ".bashrc",
      act: async (page) => {
        await page.route("**/files/**", (route) => route.fulfill({ status: 500, json: refusal }));
        await press(page, "Download .profile");
        await page.getByRole("alert").filter({ hasText: "could not answer" }).waitFor();
      },
      isWindow: true,
    },
    {
      name: "metrics-of-a-day",
      at: `${page}/details`,
      sign: "Status since",
      act: async (page) => {
        const until = Date.now();
        const json = Array.from({ length: 90 }, (_, index) => ({
          ...{ at: until - (90 - index) * 10_000, cpu_pct: 50 + 45 * Math.sin(index / 6), vcpus: 1 },
          ...{ memory_used_mb: 60 + index * 4, memory_total_mb: 470, disk_used_mb: 300, disk_total_mb: 3_900 },
        })).filter((_, index) => index < 30 || index > 45); // a pause
        await page.route("**/metrics**", (route) => route.fulfill({ json }));
        await page.getByRole("tab", { name: "Metrics" }).click();
        await page.locator("canvas").nth(2).waitFor();
      },
    },
    {
      name: "reconnecting",
      at: "#/templates",
      sign: "built-in",
      act: async (page) => {
        await page.route("**/v1/events**", (route) => route.abort());
        await page.reload();
        await page.getByText("Reconnecting").waitFor();
      },
    },
    { name: "api-reference", at: "docs", sign: "WebSockets", isOut: true, isWindow: true },
    {
      name: "api-reference-open",
      at: "docs",
      sign: "WebSockets",
      isOut: true,
      isWindow: true,
      act: async (page) => {
        const operation = page.locator("#operations-Capsules-createCapsule");
        await operation.getByRole("button").first().click();
        await operation.getByText("Responses").first().waitFor();
        await operation.scrollIntoViewIfNeeded();
      },
    },
    {
      name: "unreachable",
      at: "#/templates",
      sign: "built-in",
      act: async (page) => {
        await page.route("**/v1/**", (route) => route.abort());
        await page.reload();
        await page.getByText("Retrying").waitFor();
      },
    },
  ];
}
