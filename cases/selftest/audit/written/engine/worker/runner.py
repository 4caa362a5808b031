"""A runner: loads a model, compiles it in a profile run, captures, and executes steps."""

from engine import envs


class Runner:
    def __init__(self, config):
        self.config = config
        self.method = config.method
        self.wide = config.width > 1
        self.loaded = False
        self.requests = []
        self.types = None
        self.last_length = 0

    def load_model(self, loader):
        self.model = loader.make(self.config)
        self.model.load_weights(loader.weights())
        self.model.set_layers(self.config.layers)
        loader.after_loading(self.model)
        self.loaded = self.config.has_rows

    def profile_run(self):
        self._dummy_run(self.config.max_tokens)

    def capture_model(self):
        for tokens in self.config.sizes:
            self._dummy_run(tokens)

    def _dummy_run(self, tokens):
        self.model.prepare(tokens)
        self.model(input_ids=self.ids[:tokens], positions=self.positions[:tokens], **self._fixed())
        self.model.after_step()

    def add_request(self, request):
        self.requests.append(request)
        self.types = request.types

    def execute_model(self, scheduled):
        self.model.prepare(scheduled.tokens)
        self.model.before_step(scheduled.rows)
        self.model.scale_now = scheduled.scale
        model = self.model
        model.begun = model.begun + 1
        self.last_length = scheduled.tokens
        ids, positions = self.ids[: scheduled.tokens], self.positions[: scheduled.tokens]
        answer = self.model(input_ids=ids, positions=positions, **self._fixed(), **self._open(scheduled))
        self.model.after_step()
        return answer

    @property
    def is_deep(self):
        return self.config.depth > 2 and self.wide

    def _needs_rows(self):
        if self.method in ("first", "second"):
            return True
        return self.is_deep

    def _fixed(self):
        """Give what the configuration needs, in every call alike."""
        deep = self.config.kind == "deep"
        kwargs = {}
        if self.method == "first":
            kwargs["by_method"] = self.rows
        if self.is_deep:
            kwargs["by_property"] = self.rows
        if deep or not self.wide:
            kwargs["by_local"] = self.rows
        if self._needs_rows():
            kwargs["by_helper"] = self.rows
        if envs.ROWS and len(self.config.layers) > 1:
            kwargs["by_environment"] = self.rows
        if isinstance(self.model, LoadedModel) and hasattr(self.model, "rows"):
            kwargs["by_type"] = self.rows
        if self.loaded:
            kwargs["by_loading"] = self.rows
        if needs_rows(self.config):
            kwargs["by_function"] = self.rows
        return kwargs

    def _has_types(self):
        return self.types is not None

    @property
    def is_long(self):
        return self.last_length > self.config.long

    def _open(self, scheduled):
        """Give what the requests of a step need."""
        some = [request for request in self.requests if request.rows]
        kwargs = {}
        if scheduled.rows is not None:
            kwargs["by_argument"] = scheduled.rows
        if self._has_types():
            kwargs["by_request"] = self.types
        if self.is_long:
            kwargs["by_state"] = self.rows
        if some:
            kwargs["by_comprehension"] = self.rows
        if len(self.requests) > 1:
            kwargs["by_length"] = self.rows
        if self.wide and self.types:
            kwargs["by_both"] = self.types
        return kwargs


def needs_rows(config):
    return config.kind == "deep" and not config.flat


class LoadedModel:
    pass
