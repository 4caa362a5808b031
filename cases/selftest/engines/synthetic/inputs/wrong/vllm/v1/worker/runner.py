class Runner:
    """Gives an input of the model in some steps only."""

    def model_kwargs(self, requests):
        kwargs = {}
        if any(request.has_segments for request in requests):
            kwargs["segment_ids"] = self.segment_ids
        return kwargs
