/** Every dialog of the dashboard, from every place that opens it, and something of each kind that a dialog is about. */
import type { Client, TestCapsule } from "../client.ts";

export interface Opening {
  /** The page, and the button on it. */
  at: string;
  button: string;
  /** The button that shows it. */
  via?: string;
  /** The element that has the focus: its label or text. */
  focus: string;
  /** Enter after "ci" was typed sends this request, or closes the dialog without one. */
  enter: "closes" | `POST ${string}` | `PATCH ${string}` | `PUT ${string}`;
  /** In a list of choices Enter sends nothing: this button does. */
  confirm?: string;
  /** The typed text is part of the request. */
  isTyped?: true;
}

export interface Places {
  capsule: TestCapsule;
  pid: number;
  template: string;
  key: string;
}

export function openings({ capsule: { id }, pid, template, key }: Places): Opening[] {
  const page = `#/capsules/${id}`;
  const destroy = { focus: "Cancel", enter: "closes" } as const;
  const via = "More actions";
  const create = { focus: "Template", enter: "POST /v1/capsules", confirm: "Create" } as const;
  return [
    { at: "#/capsules", button: "New capsule", ...create },
    { at: "#/capsules", button: `Destroy ${id}`, ...destroy },
    { at: `${page}/details`, via, button: "Stop", focus: "Stop", enter: `POST /v1/capsules/${id}/stop` },
    { at: `${page}/details`, button: "Snapshot", focus: "Template name", enter: "POST /v1/snapshots", isTyped: true },
    { at: `${page}/details`, via, button: "Destroy", ...destroy },
    {
      at: `${page}/details`,
      button: "Edit name and labels",
      focus: "Name",
      enter: `PATCH /v1/capsules/${id}`,
      isTyped: true,
    },
    {
      at: `${page}/files`,
      button: "New folder",
      focus: "Name",
      enter: `POST /v1/capsules/${id}/files/mkdir`,
      isTyped: true,
    },
    { at: `${page}/files`, button: "file .bashrc", focus: "Close", enter: "closes" },
    {
      at: `${page}/files`,
      button: "Rename .bashrc",
      focus: "New name",
      enter: `POST /v1/capsules/${id}/files/move`,
      isTyped: true,
    },
    { at: `${page}/files`, button: "Delete .bashrc", ...destroy },
    { at: `${page}/processes`, button: `End process ${pid}`, ...destroy },
    { at: `${page}/processes`, button: `Output of process ${pid}`, focus: "Close", enter: "closes" },
    { at: `${page}/network`, button: "Make port 8000 public", ...destroy },
    {
      at: `${page}/network`,
      button: "Edit network",
      focus: "Reaches on the internet",
      enter: `PUT /v1/capsules/${id}/network`,
      confirm: "Save",
    },
    { at: "#/templates", button: `New capsule from ${template}`, ...create },
    { at: "#/templates", button: `Delete ${template}`, ...destroy },
    { at: "#/keys", button: "New key", focus: "Name", enter: "POST /v1/keys", isTyped: true },
    { at: "#/keys", button: `Revoke ${key}`, ...destroy },
  ];
}

export interface Place {
  at: string;
  button: string;
  /** The button that shows it, and gets the focus back. */
  via?: string;
  /** A box to tick before. */
  tick?: string;
  /** A button in the dialog that opens the one to look at. */
  next?: string;
}

/** Every dialog from every place, and those that more than one step opens. */
export function allPlaces(places: Places): Place[] {
  const { id } = places.capsule;
  return [
    ...openings(places),
    { at: "#/capsules", tick: `Choose ${id}`, button: "Destroy 1" },
    { at: `#/capsules/${id}/files`, button: "file .bashrc", next: "Edit" },
  ];
}

const listener = "import socket, time; kept = socket.create_server(('127.0.0.1', 8000)); time.sleep(1000)";

/** Something of each kind that a dialog is about. */
export async function furnish(client: Client, template: string, keyName: string) {
  const source = await client.capsule();
  await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: source.id, name: template } });
  const capsule = await client.capsule();
  const { json: sleep } = await capsule.exec({ cmd: "sleep", args: ["1000"], background: true });
  await capsule.exec({ cmd: "python3", args: ["-c", listener], background: true });
  const { json: key } = await client.expect(201, "POST", "/v1/keys", { json: { name: keyName } });
  const places: Places = { capsule, pid: sleep.pid, template, key: keyName };
  const remove = async () => {
    await capsule.destroy();
    await client.expect(204, "DELETE", `/v1/snapshots/${template}`);
    await client.expect(204, "DELETE", `/v1/keys/${key.id}`);
  };
  return { places, [Symbol.asyncDispose]: remove };
}
