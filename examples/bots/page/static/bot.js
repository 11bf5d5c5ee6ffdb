// The page works without this file; with it, nothing has to be reloaded.
const log = document.getElementById("log");
const say = document.getElementById("say");
const trouble = document.getElementById("trouble");
let version = "";

async function refresh() {
  const answer = await fetch("/log", { headers: version ? { "if-none-match": version } : {}, cache: "no-store" });
  if (answer.status !== 200) return;
  version = answer.headers.get("etag") || "";
  const atEnd = innerHeight + scrollY >= document.body.scrollHeight - 80;
  log.innerHTML = await answer.text();
  if (atEnd) scrollTo(0, document.body.scrollHeight);
}

async function send(form, button) {
  const body = new URLSearchParams(new FormData(form, button));
  const answer = await fetch(form.action, { method: "POST", body, headers: { accept: "text/plain" } });
  if (!answer.ok) throw new Error(await answer.text());
}

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

document.addEventListener("submit", async (event) => {
  event.preventDefault();
  trouble.textContent = "";
  try {
    await send(event.target, event.submitter);
    if (event.target === say) {
      // The next message is another one. After a failure the id stays: sent again, it is still the same message.
      say.elements.id.value = newId();
      say.elements.text.value = "";
    }
  } catch (error) {
    trouble.textContent = `Not sent: ${error.message}. Send it again.`;
  }
  await tick();
});

say.elements.text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    say.requestSubmit();
  }
});

async function tick() {
  try {
    await refresh();
  } catch {
    // The server is away; it is asked again.
  }
}

setInterval(tick, 1000);
