-- Functions of the registry with the caller's own rights: saving and resolving in one round trip.
select 1;
