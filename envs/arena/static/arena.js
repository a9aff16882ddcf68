// Pages follow each other in one document, as with Turbo and its like: what a link or a form asks for is fetched and put
// in the old page's place. It saves half of what a page costs; the first one and what comes from outside are loads.
let broken = false;
navigation.addEventListener("navigate", (event) => {
  const {destination: {url, sameDocument}, formData, navigationType, signal} = event;
  const changes = navigationType === "push" || navigationType === "replace" ? !sameDocument : navigationType === "traverse";
  if (broken || !changes || !event.canIntercept || event.hashChange || event.downloadRequest !== null) return;
  event.intercept({async handler() {
    try {
      const post = formData && {method: "POST", body: new URLSearchParams(formData)};
      const answer = await fetch(url, {...post, signal});
      if (answer.status >= 500) throw answer.status;
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.title = next.title;
      document.body.replaceWith(next.body);
      if (answer.redirected) history.replaceState(null, "", answer.url);
    } catch (error) {  // a posted form cannot be sent again: a load that fails, so that the fault is seen
      broken = !signal.aborted;
      if (broken) location.replace(`/${location.pathname.split("/")[1]}/broken?${error}`);
    }
  }});
});
